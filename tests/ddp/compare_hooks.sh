#!/usr/bin/env bash
# compare_hooks.sh MUSTER PROGRAM PYTHON RANKS FOLDER: the gradients of hook_table.cc against Python's over Gloo, one thread.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5
"$python" -c 'import torch.distributed' 2>/dev/null || { echo "skipped: no Python with this LibTorch's torch ('$python')"; exit 77; }
rm -rf "$folder"; mkdir -p "$folder"
export OMP_NUM_THREADS=1 MUSTER_BACKEND=gloo LOSSES_FOLDER=$folder
"$muster" run --quiet --nproc-per-node "$ranks" --cpu-slots "$ranks" --run-dir "$folder/run" "$program"
PYTHON_EXEC=$python "$muster" run --quiet --nproc-per-node "$ranks" --run-dir "$folder/run-python" \
  "$(dirname "$0")/hook_table.py"
"$python" "$(dirname "$0")/compare_hooks.py" "$folder" "$ranks"
