#!/usr/bin/env bash
# compare_losses.sh MUSTER PROGRAM PYTHON RANKS FOLDER [BACKEND]: the same training by our DistributedDataParallel and by
# Python's, one thread: every rank's losses must be the same to the last bit. BACKEND: gloo, shm, or nccl on GPUs.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5 backend=${6:-gloo} here=$(dirname "$0")
. "$here/../support/both_ways.sh"
prepare_both_ways "$python" "$folder" "$backend"
train_ours "$muster" "$program" "$ranks"
train_twin "$here/ddp_losses.py" "$ranks"
for rank in $(seq 0 $((ranks - 1))); do
  [ "$(wc -l <"$folder/ours-$rank")" = 20 ] || { echo "expected 20 losses of rank $rank"; exit 1; }
  diff "$folder/ours-$rank" "$folder/python-$rank" || { echo "losses of rank $rank differ (ours, then Python's)"; exit 1; }
done
echo "20 losses on each of $ranks ranks: the same bits"
