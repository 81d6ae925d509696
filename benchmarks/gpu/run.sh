#!/usr/bin/env bash
# run.sh PART OUT: one part of the GPU measurements; its rows are in OUT as soon as they are measured.
#
#   1  ceilings of the device, every kernel and the model against float64 and the CPU      (4 minutes)
#   2  encoding speed of our model in all its forms                                        (7 minutes)
#   3  encoding speed of the peers: the authors' code, ModernBERT, BERT                     (6 minutes)
#   4  every kernel beside torch, torch.compile and its floor                              (4 minutes)
#   5  a training step: ours, the authors' code, the peers                                 (4 minutes)
#
# In order of worth. A part leaves out what would end after its minutes, and is ended half a minute after them whatever
# it does. With 1.5 minutes until the machine has started and 12 seconds of transfers for each part, all five take at
# most 30 minutes: one lease. Training a model takes another one (recipes/aveyb-base-en).
#
# AUTHORS: the authors' package folder (default: peers/avey_b where it exists; the folder is ignored by git).
# DEVICE=cpu TOY=1 is a dry run of seconds.
set -uo pipefail
[ $# = 2 ] || { sed -n '2,15p' "$0"; exit 2; }
part=$1 out=$2
cd "$(dirname "$0")/../.."
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
authors=${AUTHORS:-peers/avey_b}
common=(--out "$out" --device "${DEVICE:-cuda}")
[ -z "${TOY:-}" ] || common+=(--toy)
peers=()
[ ! -d "$authors" ] || peers=(--authors "$authors")
run() {  # MINUTES SCRIPT ARGUMENTS...
  local minutes=$1 script=$2
  shift 2
  timeout --signal=INT --kill-after=5 $((60 * minutes + 25)) "${PYTHON:-python}" "benchmarks/gpu/$script.py" "${common[@]}" --minutes "$minutes" "$@"
}
case $part in
  1) run 4 check ;;
  2) run 7 encode --only "all ours" --name encode_ours ;;
  3) run 6 encode --only peers --name encode_peers "${peers[@]}" ;;
  4) run 4 kernels ;;
  5) run 4 train "${peers[@]}" ;;
  *) echo "run.sh: no part $part; 1 to 5" >&2; exit 2 ;;
esac
