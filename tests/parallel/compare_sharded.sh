#!/usr/bin/env bash
# compare_sharded.sh MUSTER PROGRAM PYTHON RANKS FOLDER BACKEND: the same trainings by ShardedOptimizer and FullySharded and by
# PyTorch's ZeroRedundancyOptimizer and fully_shard (over Gloo); the largest difference of a loss in 20 steps.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5 backend=$6
. "$(dirname "$0")/../support/needs_torch.sh"
needs_torch "$python"
rm -rf "$folder"; mkdir -p "$folder"
export OMP_NUM_THREADS=1 LOSSES_FOLDER=$folder
MUSTER_BACKEND=$backend "$muster" run --quiet --nproc-per-node "$ranks" --cpu-slots "$ranks" --run-dir "$folder/run" "$program"
"$python" -B "$(dirname "$0")/../support/forked.py" "$ranks" "$(dirname "$0")/sharded_losses.py"
"$python" - "$folder" "$ranks" <<'PYTHON'
import sys

folder, ranks = sys.argv[1], int(sys.argv[2])
# Two addends have one sum; three are added, and divided by three, in another order. LibTorch's Adam in C++ multiplies
# and adds where Python's calls lerp; clipping takes the norm in other steps.
rounded = {"zero adam", "full adam", "zero adamw", "full adamw", "full clipped"}
wrong = False
for rank in range(ranks):
    read = lambda who: [line.rstrip().split(": ") for line in open(f"{folder}/{who}-{rank}")]
    theirs = {name: [float(loss) for loss in losses.split()] for name, losses in read("python")}
    ours = read("ours")
    assert len(ours) == 17 and {name for name, _ in ours} == set(theirs), (len(ours), sorted(theirs))
    for name, losses in ours:
        mine = [float(loss) for loss in losses.split()]
        assert len(mine) == len(theirs[name]) == 20
        difference = max(abs(a - b) for a, b in zip(mine, theirs[name]))
        bound = 1e-6 if ranks > 2 or name in rounded else 0
        if rank == 0 or difference > bound:
            print(f"rank {rank} {name}: {difference:.2g} of at most {bound:g}")
        wrong = wrong or not difference <= bound
sys.exit(wrong)
PYTHON
