#!/usr/bin/env bash
# run.sh PART OUT: one part of the GPU measurements, at most 9 minutes; its rows are in OUT as soon as they are measured.
#
#   1  ceilings of the device, every kernel and the model against float64 and the CPU      (4 minutes)
#   2  encoding speed of our model in all its forms                                        (8 minutes)
#   3  encoding speed of the peers: the authors' code, ModernBERT, BERT                     (8 minutes)
#   4  every kernel beside torch, torch.compile and its floor                              (6 minutes)
#   5  a training step: ours, the authors' code, the peers                                 (7 minutes)
#
# In order of worth. AUTHORS: the authors' package folder (default: peers/avey_b where it exists; the folder is ignored
# by git). DEVICE=cpu TOY=1 is a dry run of seconds.
set -uo pipefail
[ $# = 2 ] || { sed -n '2,12p' "$0"; exit 2; }
part=$1 out=$2
cd "$(dirname "$0")/../.."
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
authors=${AUTHORS:-peers/avey_b}
common=(--out "$out" --device "${DEVICE:-cuda}")
[ -z "${TOY:-}" ] || common+=(--toy)
peers=()
[ ! -d "$authors" ] || peers=(--authors "$authors")
run() {  # MINUTES SCRIPT ARGUMENTS...: the script leaves out what would end later; 540 s end it whatever it does
  local minutes=$1 script=$2
  shift 2
  timeout --signal=INT --kill-after=10 540 "${PYTHON:-python}" "benchmarks/gpu/$script.py" "${common[@]}" --minutes "$minutes" "$@"
}
case $part in
  1) run 4 check ;;
  2) run 8 encode --only "all ours" --name encode_ours ;;
  3) run 8 encode --only peers --name encode_peers "${peers[@]}" ;;
  4) run 6 kernels ;;
  5) run 7 train "${peers[@]}" ;;
  *) echo "run.sh: no part $part; 1 to 5" >&2; exit 2 ;;
esac
