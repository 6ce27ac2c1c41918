#!/usr/bin/env bash
# compare_more.sh MUSTER PROGRAM PYTHON RANKS FOLDER: the runs of ddp_more.cc against Python's over Gloo, one thread.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5
"$python" -c 'import torch.distributed' 2>/dev/null || { echo "skipped: no Python with this LibTorch's torch ('$python')"; exit 77; }
rm -rf "$folder"; mkdir -p "$folder"
export OMP_NUM_THREADS=1 MUSTER_BACKEND=gloo LOSSES_FOLDER=$folder
# First, as it writes the scripted module.
PYTHON_EXEC=$python "$muster" run --quiet --nproc-per-node "$ranks" --run-dir "$folder/run-python" \
  "$(dirname "$0")/ddp_more.py"
"$muster" run --quiet --nproc-per-node "$ranks" --cpu-slots "$ranks" --run-dir "$folder/run" "$program"
"$python" "$(dirname "$0")/compare_more.py" "$folder" "$ranks"
