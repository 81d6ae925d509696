#!/bin/sh
# The run of this recipe, in the background: one thread, or THREADS, giving way to everything else.
#
#   run.sh start           make the texts if they are missing; begin, or go on from the newest checkpoint
#   run.sh stop            end with a checkpoint
#   run.sh pause | go on   hold the process, and let it go on
#   run.sh status          whether it runs, and its last figures
#   run.sh cooldown [N]    stop, and let the learning rate fall to 0 in N (300) steps, in a run of its own beside it
#   run.sh figures         copy the development figures and their curve into this folder
#   run.sh export OUT [RUN]  write the newest checkpoint as a model folder
#
# DATA    folder of the data sets, with train/ and pretrain/     WORK    where everything lies
# MIRROR  where checkpoints are copied, too (default: nowhere)   PYTHON  with this package and its extras train, minilm
# THREADS (default: 1)     WEIGHTS  model folder that a new run goes on from (default: none; it begins with the teacher)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
DATA=${DATA:-$root/../shared/data}
WORK=${WORK:-$root/checkpoints/aveyb-base-en}
MIRROR=${MIRROR:-}
PYTHON=${PYTHON:-python}
THREADS=${THREADS:-1}
pid=$WORK/pid
export OMP_NUM_THREADS=$THREADS TOKENIZERS_PARALLELISM=false PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
# glibc: memory stays with the process, instead of going back to the system at every step
export MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=16000000000

running() { [ -f "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }

background() { # the log, then a command
    log=$1
    shift
    if running; then
        echo "already running: $(cat "$pid")" >&2
        exit 1
    fi
    # Linux may share processors by sessions, and then `nice` counts only within one: this one gives way, too
    setsid nohup bash -c '[ ! -w /proc/$$/autogroup ] || echo 19 >/proc/$$/autogroup; exec nice -n 19 "$@"' _ "$@" \
        >>"$log" 2>&1 </dev/null &
    echo $! >"$pid"
    echo "running: $!; $log"
}

send() { # a signal, to all processes of the run
    if ! running; then
        echo "not running" >&2
        exit 1
    fi
    kill -s "$1" -- "-$(cat "$pid")"
}

stop() {
    if running; then
        send TERM
        send CONT # a held process ends, too
        while running; do sleep 1; done
    fi
    rm -f "$pid"
}

case "${1:-} ${2:-}" in
"start "*)
    mkdir -p "$WORK"
    background "$WORK/log" "$0" train
    ;;
"train "*) # in the foreground: what start runs
    if ! [ -f "$WORK/texts/texts.safetensors" ]; then
        teacher=$("$PYTHON" -c "from aveyb_retrieval.encoder.embedders.loading import minilm_folder; print(minilm_folder())")
        "$PYTHON" "$here/../aveyb-small-en/make_texts.py" --data "$DATA" --vocabulary "$teacher" --out "$WORK/texts"
        "$PYTHON" "$here/token_ids.py" --texts "$WORK/texts" --vocabulary "$teacher"
    fi
    exec "$PYTHON" "$here/distil.py" --texts "$WORK/texts" --data "$DATA" --out "$WORK/run" --threads "$THREADS" \
        ${MIRROR:+--mirror "$MIRROR/run"} ${WEIGHTS:+--weights "$WEIGHTS" --seed 1}
    ;;
"stop "*) stop ;;
"pause "*) send STOP ;;
"go on") send CONT ;;
"status "*)
    if running; then ps -o pid=,stat=,etime=,time=,ni=,rss= -p "$(cat "$pid")"; else echo "not running"; fi
    for run in "$WORK/run" "$WORK"/cooled-*; do
        if [ -f "$run/metrics.jsonl" ]; then tail -n 1 "$run/metrics.jsonl"; fi
        if [ -f "$run/figures.json" ]; then tail -n 20 "$run/figures.json"; fi
    done
    ;;
"cooldown "*)
    stop
    step=$(ls "$WORK/run/checkpoints" | sed -n 's/^checkpoint-//p' | sort -n | tail -n 1)
    background "$WORK/log" "$PYTHON" "$here/distil.py" --texts "$WORK/texts" --data "$DATA" --start "$WORK/run" \
        --cooldown "${2:-300}" --out "$WORK/cooled-$step" --threads "$THREADS"
    ;;
"figures "*) "$PYTHON" "$here/figures.py" "$WORK/run" "$here" ;;
"export "*) "$PYTHON" "$here/export_checkpoint.py" --run "${3:-$WORK/run}" --out "$2" ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
