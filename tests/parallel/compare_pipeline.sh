#!/usr/bin/env bash
# compare_pipeline.sh MUSTER PROGRAM PYTHON FOLDER: 4 stages by Pipeline and by torch.distributed.pipelining over Gloo, one
# thread: the same losses to the last bit (8 micro-batches: dividing by 8 at the end or at the beginning is the same).
set -euo pipefail
muster=$1 program=$2 python=$3 folder=$4
. "$(dirname "$0")/../support/needs_torch.sh"
needs_torch "$python"
rm -rf "$folder"; mkdir -p "$folder"
export OMP_NUM_THREADS=1 MUSTER_BACKEND=gloo LOSSES_FOLDER=$folder
"$muster" run --quiet --nproc-per-node 4 --cpu-slots 4 --run-dir "$folder/run" "$program"
"$python" -B "$(dirname "$0")/../support/forked.py" 4 "$(dirname "$0")/pipeline_losses.py"
[ "$(wc -l <"$folder/ours-3")" = 40 ] || { echo "expected 40 losses of the last stage"; exit 1; }
diff "$folder/ours-3" "$folder/python-3" || { echo "the losses differ (ours, then Python's)"; exit 1; }
echo "40 losses by 2 schedules on 4 ranks: the same bits as torch.distributed.pipelining's"
