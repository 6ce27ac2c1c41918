#!/usr/bin/env bash
# compare_step.sh MUSTER PROGRAM PYTHON RANKS FOLDER [BACKEND]: the same training by TrainStep and by Python's
# DistributedDataParallel, autocast, GradScaler, clipping, scheduler and AveragedModel, one thread: the same to the last bit.
# BACKEND: gloo, or nccl on GPUs.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5 backend=${6:-gloo} here=$(dirname "$0")
. "$here/../support/both_ways.sh"
prepare_both_ways "$python" "$folder" "$backend"
train_ours "$muster" "$program" "$ranks"
train_twin "$here/step_losses.py" "$ranks"
for rank in $(seq 0 $((ranks - 1))); do
  [ "$(wc -l <"$folder/ours-$rank")" = 147 ] || { echo "expected 40 losses and 9 averages in 3 types of rank $rank"; exit 1; }
  diff "$folder/ours-$rank" "$folder/python-$rank" || { echo "rank $rank differs (ours, then Python's)"; exit 1; }
done
for type in fp32 bf16 fp16; do
  skipped=$(grep "^$type 0x.* [0-9]*$" "$folder/ours-0" | tail -1 | cut -d' ' -f4)
  echo "$type: 40 losses, the scales and 9 averages on each of $ranks ranks: the same bits; $skipped steps left out"
done
