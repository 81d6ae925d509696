#!/bin/sh
# The run of this recipe, on a GPU where there is one. A stage that has ended is not made again; one that was killed is,
# and the learning from teachers continues from its newest checkpoint.
#
# DATA      folder of the data sets, with train/ and pretrain/       WORK    where everything lies
# TEACHERS  folder with the four teachers                            PYTHON  with this package and its extra train
# DISTILL, DOCUMENTS  further options of the two stages, for a smaller run
set -eu
here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python}
export TOKENIZERS_PARALLELISM=false
first=$TEACHERS/all-MiniLM-L6-v2

# make NAME COMMAND...: COMMAND, with the folder to write as its last word; it gets its name when it is whole
make() {
    name=$1
    shift
    [ ! -d "$WORK/$name" ] || return 0
    rm -rf "$WORK/$name.part"
    "$PYTHON" "$@" "$WORK/$name.part"
    mv "$WORK/$name.part" "$WORK/$name"
}

make start "$here/student.py" "$first"
[ -f "$WORK/documents.jsonl" ] || "$PYTHON" "$here/texts.py" --data "$DATA" --vocabulary "$first" --out "$WORK"
resume=
for state in "$WORK"/distilled/checkpoints/checkpoint-*/trainer_state.json; do
    [ ! -f "$state" ] || resume=--resume
done
# shellcheck disable=SC2086 # options are words
[ -f "$WORK/distilled/README.md" ] || "$PYTHON" -m aveyb_retrieval.cli.train distill "$WORK/texts.jsonl" \
    --queries "$WORK/queries.jsonl" --model "$WORK/start" -o "$WORK/distilled" $resume \
    --teacher "$first" --teacher-prompts "" "" \
    --teacher "$TEACHERS/all-mpnet-base-v2" --teacher-prompts "" "" \
    --teacher "$TEACHERS/snowflake-arctic-embed-xs" \
    --teacher-prompts "Represent this sentence for searching relevant passages: " "" \
    --teacher "$TEACHERS/e5-small-v2" --teacher-prompts "query: " "passage: " \
    --phrases 1 --near 24 --batch-size 1024 --steps 8000 --learning-rate 1e-3 \
    --vector-weight 4 --score-weight 2 --temperature 0.05 ${DISTILL:-}
# shellcheck disable=SC2086
make documents "$here/documents.py" --documents "$WORK/documents.jsonl" --texts "$WORK/queries.jsonl" \
    --model "$WORK/distilled/model" ${DOCUMENTS:-} --out
make model "$here/shrink.py" "$WORK/documents"
