#!/usr/bin/env bash
# The benchmarks, with the peers beside them. Arguments after the build folder go to launch_bench: --ranks 64.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: bench.sh BUILD_FOLDER [ARGUMENTS]}
shift
python=$PWD/.deps/torch/bin/python
if [ -n "${TORCH:-}" ]; then
  # A python that imports torch, or the one whose site-packages/torch it is.
  if [ -d "$TORCH" ]; then python=$TORCH/../../../../bin/python; else python=$TORCH; fi
fi
echo "machine: $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
"$build/benchmarks/plan_bench"
"$build/benchmarks/cluster_sim"
"$build/benchmarks/tasks_bench"
"$build/benchmarks/store_bench"
"$build/benchmarks/shm_bench"
[ ! -x "$build/benchmarks/loader_bench" ] || "$python" benchmarks/loader_bench.py "$build/benchmarks/loader_bench"
[ ! -x "$build/benchmarks/train_bench" ] || "$build/benchmarks/train_bench"
[ ! -x "$build/benchmarks/rebalance_bench" ] || "$build/bin/muster" run -n 2 "$build/benchmarks/rebalance_bench"
[ ! -x "$build/benchmarks/memory_bench" ] || "$build/benchmarks/memory_bench"
[ ! -x "$build/libexec/muster/muster-bench" ] || python3 benchmarks/all_reduce_bench.py "$build/bin/muster"
[ ! -x "$build/tests/elastic_probe" ] || "$python" benchmarks/in_place_bench.py "$build" --python "$python"
[ ! -x "$build/benchmarks/save_bench" ] || "$python" benchmarks/checkpoint_bench.py "$build" --python "$python"
if [ -x "$build/benchmarks/trace_bench" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  "$build/bin/muster" run --trace -n 2 --cpu-slots 2 --run-dir "$folder" "$build/benchmarks/trace_bench"
fi
"$python" benchmarks/fault_bench.py "$build/bin/muster" --python "$python"
python3 benchmarks/agents_bench.py "$build/bin/muster" --agents 100
"$build/benchmarks/launch_bench" --python "$python" "$@"
