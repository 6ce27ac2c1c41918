#!/usr/bin/env bash
# compare_losses.sh MUSTER PROGRAM PYTHON RANKS FOLDER [BACKEND]: the same training by our DistributedDataParallel and by
# Python's over Gloo, one thread: every rank's losses must be the same to the last bit.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5 backend=${6:-gloo}
"$python" -c 'import torch.distributed' 2>/dev/null || { echo "skipped: no Python with this LibTorch's torch ('$python')"; exit 77; }
rm -rf "$folder"; mkdir -p "$folder"
export OMP_NUM_THREADS=1 MUSTER_BACKEND=$backend LOSSES_FOLDER=$folder
"$muster" run --quiet --nproc-per-node "$ranks" --cpu-slots "$ranks" --run-dir "$folder/run" "$program"
PYTHON_EXEC=$python "$muster" run --quiet --nproc-per-node "$ranks" --run-dir "$folder/run-python" \
  "$(dirname "$0")/ddp_losses.py"
for rank in $(seq 0 $((ranks - 1))); do
  [ "$(wc -l <"$folder/ours-$rank")" = 20 ] || { echo "expected 20 losses of rank $rank"; exit 1; }
  diff "$folder/ours-$rank" "$folder/python-$rank" || { echo "losses of rank $rank differ (ours, then Python's)"; exit 1; }
done
echo "20 losses on each of $ranks ranks: the same bits"
