#!/bin/sh
# The run of this recipe, on a GPU where there is one, else on one thread. A stage that has ended is
# not made again; one that was stopped goes on where it was.
#
# DATA    folder of texts in many languages      WORK    where everything lies
# COPIES  another folder for checkpoints         PYTHON  with this package and its extras train, languages
# LEARN   further options of learn.py            TEACHER further options of teacher.py
set -eu
here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python}
COPIES=${COPIES:-$WORK/copies}
export PYTHONPATH="$here:$here/../aveyb-base-en${PYTHONPATH:+:$PYTHONPATH}"
export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1
mkdir -p "$WORK" "$COPIES"

# run COMMAND...: in the background, with its id in WORK/pid, so that it can be stopped and continued
run() {
    "$PYTHON" "$@" &
    echo $! > "$WORK/pid"
    wait $!
}

[ -f "$WORK/items.jsonl" ] || run "$here/texts.py" --data "$DATA" --out "$WORK"
if [ ! -d "$WORK/start" ]; then
    rm -rf "$WORK/start.part"
    [ ! -d "$COPIES/start" ] || cp -r "$COPIES/start" "$WORK/start.part"
    [ -d "$WORK/start.part" ] || run "$here/start.py" --items "$WORK/items.jsonl" "$WORK/start.part"
    mv "$WORK/start.part" "$WORK/start"
    cp -r "$WORK/start" "$COPIES/start"
fi
# shellcheck disable=SC2086 # options are words
run "$here/teacher.py" --items "$WORK/items.jsonl" --out "$WORK/vectors" --copy "$COPIES/vectors" ${TEACHER:-}
# shellcheck disable=SC2086
[ -d "$WORK/learned/model" ] || run "$here/learn.py" --items "$WORK/items.jsonl" --vectors "$WORK/vectors" \
    --model "$WORK/start" --out "$WORK/learned" --copy "$COPIES/checkpoint" ${LEARN:-}
[ -d "$WORK/model" ] || run "$here/../aveyb-base-en/shrink.py" "$WORK/learned/model" "$WORK/model"
