#!/usr/bin/env bash
# compare_hooks.sh MUSTER PROGRAM PYTHON RANKS FOLDER [BACKEND]: the gradients of hook_table.cc against Python's, one thread.
# BACKEND: gloo, or nccl on GPUs.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5 backend=${6:-gloo} here=$(dirname "$0")
. "$here/../support/both_ways.sh"
prepare_both_ways "$python" "$folder" "$backend"
train_ours "$muster" "$program" "$ranks"
train_twin "$here/hook_table.py" "$ranks"
"$python" "$here/compare_hooks.py" "$folder" "$ranks"
