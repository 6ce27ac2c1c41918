#!/usr/bin/env bash
# compare_step.sh MUSTER PROGRAM PYTHON RANKS FOLDER: the same training by TrainStep and by Python's DistributedDataParallel,
# autocast, GradScaler, clipping, scheduler and AveragedModel, over Gloo, one thread: the same to the last bit.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5
"$python" -c 'import torch.distributed' 2>/dev/null || { echo "skipped: no Python with this LibTorch's torch ('$python')"; exit 77; }
rm -rf "$folder"; mkdir -p "$folder"
export OMP_NUM_THREADS=1 MUSTER_BACKEND=gloo LOSSES_FOLDER=$folder
"$muster" run --quiet --nproc-per-node "$ranks" --cpu-slots "$ranks" --run-dir "$folder/run" "$program"
PYTHON_EXEC=$python "$muster" run --quiet --nproc-per-node "$ranks" --run-dir "$folder/run-python" \
  "$(dirname "$0")/step_losses.py"
for rank in $(seq 0 $((ranks - 1))); do
  [ "$(wc -l <"$folder/ours-$rank")" = 147 ] || { echo "expected 40 losses and 9 averages in 3 types of rank $rank"; exit 1; }
  diff "$folder/ours-$rank" "$folder/python-$rank" || { echo "rank $rank differs (ours, then Python's)"; exit 1; }
done
for type in fp32 bf16 fp16; do
  skipped=$(grep "^$type 0x.* [0-9]*$" "$folder/ours-0" | tail -1 | cut -d' ' -f4)
  echo "$type: 40 losses, the scales and 9 averages on each of $ranks ranks: the same bits; $skipped steps left out"
done
