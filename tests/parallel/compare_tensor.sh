#!/usr/bin/env bash
# compare_tensor.sh MUSTER PROGRAM PYTHON RANKS FOLDER: the same MLP divided by column_parallel and row_parallel, and by
# PyTorch's ColwiseParallel and RowwiseParallel, over Gloo, one thread. Losses may differ by the order of sums: 1e-5.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5
. "$(dirname "$0")/../support/needs_torch.sh"
needs_torch "$python"
rm -rf "$folder"; mkdir -p "$folder"
export OMP_NUM_THREADS=1 MUSTER_BACKEND=gloo LOSSES_FOLDER=$folder
"$muster" run --quiet --nproc-per-node "$ranks" --cpu-slots "$ranks" --run-dir "$folder/run" "$program"
"$python" -B "$(dirname "$0")/../support/forked.py" "$ranks" "$(dirname "$0")/tensor_losses.py"
for rank in $(seq 0 $((ranks - 1))); do
  paste "$folder/ours-$rank" "$folder/python-$rank" | awk -v rank="$rank" '
    NF != 2 { wrong = 1 }
    { d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; last = $1; if (NR == 1) first = $1 }
    END {
      if (wrong || NR != 25) { print "expected 25 losses of rank " rank " by both, got " NR; exit 1 }
      if (last >= 0.9 * first) { print "expected losses that fall, got " first " to " last; exit 1 }
      printf "rank %d: 25 losses, %g to %g, differ by %.1e\n", rank, first, last, worst
      if (worst > 1e-5) { print "expected at most 1e-5"; exit 1 }
    }'
done
