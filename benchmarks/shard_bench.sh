#!/usr/bin/env bash
# shard_bench.sh MUSTER PROGRAM PYTHON [RANKS [ROUNDS [LOOPS]]]: milliseconds a step of a divided GPT, ours over shared memory and
# over Gloo, PyTorch's over Gloo, in turns; then the medians, and ours by theirs. LOOPS: so many loops that never rest run beside it.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=${4:-2} rounds=${5:-3} loops=${6:-0}
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
for _ in $(seq "$loops"); do
  setpriv --pdeathsig KILL sh -c 'while :; do :; done' &
done
export OMP_NUM_THREADS=1
for _ in $(seq "$rounds"); do
  for backend in shm gloo; do
    MUSTER_BACKEND=$backend "$muster" run --quiet --nproc-per-node "$ranks" --cpu-slots "$ranks" --run-dir "$folder/run" \
      "$program" | sed "s/^\[0\] //; s/^/$backend /" >>"$folder/times"
  done
  PYTHON_EXEC=$python "$muster" run --quiet --nproc-per-node "$ranks" --run-dir "$folder/run" \
    "$(dirname "$0")/shard_bench.py" | sed "s/^\[0\] //; s/^/pytorch /" >>"$folder/times"
done
"$python" - "$folder/times" <<'PYTHON'
import collections
import statistics
import sys

times = collections.defaultdict(list)
for line in open(sys.argv[1]):
    who, what, milliseconds = line.split()
    times[what, who].append(float(milliseconds))
for what in ("full", "zero2", "zero1", "ddp"):
    row = {who: statistics.median(times[what, who]) for who in ("shm", "gloo", "pytorch") if times[what, who]}
    ratios = [f"shm / {who} {row['shm'] / row[who]:.2f}" for who in ("gloo", "pytorch") if who in row]
    print(f"{what:6}", ", ".join([f"{who} {ms:.1f} ms" for who, ms in row.items()] + ratios))
PYTHON
