#!/usr/bin/env bash
# compare_mpi_losses.sh MUSTER PROGRAM KIND FOLDER: the same training on two ranks over an MPI and over Gloo. Two addends
# have one sum, so the losses must be the same to the last bit. 77 where that MPI is not there.
set -euo pipefail
muster=$1 program=$2 kind=$3 folder=$4
rm -rf "$folder"; mkdir -p "$folder/gloo" "$folder/mpi"
export OMP_NUM_THREADS=1
LOSSES_FOLDER=$folder/mpi "$(dirname "$0")/../comm/mpi_ranks.sh" "$kind" 2 "$program"
MUSTER_BACKEND=gloo LOSSES_FOLDER=$folder/gloo "$muster" run --quiet --nproc-per-node 2 --cpu-slots 2 \
  --run-dir "$folder/run" "$program"
for rank in 0 1; do
  [ "$(wc -l <"$folder/mpi/ours-$rank")" = 20 ] || { echo "expected 20 losses of rank $rank"; exit 1; }
  diff "$folder/mpi/ours-$rank" "$folder/gloo/ours-$rank" || { echo "losses of rank $rank differ (MPI's, then Gloo's)"; exit 1; }
done
echo "20 losses on each of 2 ranks: the same bits over $kind and over Gloo"
