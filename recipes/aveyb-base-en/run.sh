#!/bin/sh
# The run of this recipe, on a GPU where there is one. A stage that is there already is not made again; the first
# continues from its newest checkpoint.
#
# DATA      folder of the data sets, with train/ and pretrain/       WORK    where everything lies
# TEACHERS  folder with the four teachers                            PYTHON  with this package and its extra train
set -eu
here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python}
export TOKENIZERS_PARALLELISM=false
first=$TEACHERS/all-MiniLM-L6-v2

[ -d "$WORK/start" ] || "$PYTHON" "$here/student.py" "$first" "$WORK/start"
[ -f "$WORK/documents.jsonl" ] || "$PYTHON" "$here/texts.py" --data "$DATA" --vocabulary "$first" --out "$WORK"
resume=
if [ -d "$WORK/distilled/checkpoints" ]; then resume=--resume; fi
[ -d "$WORK/distilled/model" ] || "$PYTHON" -m aveyb_retrieval.cli.train distill "$WORK/texts.jsonl" \
    --queries "$WORK/queries.jsonl" --model "$WORK/start" -o "$WORK/distilled" $resume \
    --teacher "$first" --teacher-prompts "" "" \
    --teacher "$TEACHERS/all-mpnet-base-v2" --teacher-prompts "" "" \
    --teacher "$TEACHERS/snowflake-arctic-embed-xs" \
    --teacher-prompts "Represent this sentence for searching relevant passages: " "" \
    --teacher "$TEACHERS/e5-small-v2" --teacher-prompts "query: " "passage: " \
    --phrases 1 --near 24 --batch-size 1024 --steps 8000 --learning-rate 1e-3 \
    --vector-weight 4 --score-weight 2 --temperature 0.05
[ -d "$WORK/documents" ] || "$PYTHON" "$here/documents.py" --documents "$WORK/documents.jsonl" \
    --texts "$WORK/queries.jsonl" --model "$WORK/distilled/model" --out "$WORK/documents"
[ -d "$WORK/model" ] || "$PYTHON" "$here/shrink.py" "$WORK/documents" "$WORK/model"
