#!/usr/bin/env bash
# compare_more.sh MUSTER PROGRAM PYTHON RANKS FOLDER [BACKEND]: the runs of ddp_more.cc against Python's, one thread.
# BACKEND: gloo, or nccl on GPUs.
set -euo pipefail
muster=$1 program=$2 python=$3 ranks=$4 folder=$5 backend=${6:-gloo} here=$(dirname "$0")
. "$here/../support/both_ways.sh"
prepare_both_ways "$python" "$folder" "$backend"
train_twin "$here/ddp_more.py" "$ranks"  # first, as it writes the scripted module
train_ours "$muster" "$program" "$ranks"
"$python" "$here/compare_more.py" "$folder" "$ranks"
