# To be sourced: the same training by a C++ program and by its Python twin, with one thread, each writing into a folder.
#
#   prepare_both_ways PYTHON FOLDER BACKEND   ends with 77 where there is no such PyTorch or no GPU
#   train_ours MUSTER PROGRAM RANKS           writes FOLDER/ours-RANK...
#   train_twin SCRIPT RANKS                   writes FOLDER/python-RANK...
#
# BACKEND: gloo and shm on CPU ranks (the twin has Gloo), nccl on a GPU a rank. With ON_ONE_GPU=1 all ranks of nccl have one
# GPU: NCCL takes ranks that share a GPU where each says that it is on a host of its own.

. "$(dirname "${BASH_SOURCE[0]}")/needs_torch.sh"

prepare_both_ways() {
  export PYTHON_EXEC=$1 LOSSES_FOLDER=$2 MUSTER_BACKEND=$3 OMP_NUM_THREADS=1
  if [ "$3" = nccl ] && ! nvidia-smi -L >/dev/null 2>&1; then
    echo "skipped: no NVIDIA GPU on this machine (nvidia-smi -L fails)"
    exit 77
  fi
  needs_torch "$1"
  rm -rf "$2"
  mkdir -p "$2"
}

# ranks_of_both_ways RANKS: where they are.
ranks_of_both_ways() {
  [ "$MUSTER_BACKEND" = nccl ] && echo "--nproc-per-node $1" || echo "--nproc-per-node cpu --cpu-slots $1"
}

train_ours() {
  if [ -n "${ON_ONE_GPU:-}" ]; then
    # shellcheck disable=SC2016
    "$1" run --quiet --gpus 0 --surplus share --nproc-per-node "$3" --run-dir "$LOSSES_FOLDER/run" \
      sh -c 'MUSTER_HOST_ID=host$RANK NCCL_HOSTID=host$RANK NCCL_SOCKET_IFNAME=lo exec "$0"' "$2"
  else
    "$1" run --quiet $(ranks_of_both_ways "$3") --run-dir "$LOSSES_FOLDER/run" "$2"
  fi
}
train_twin() { "$PYTHON_EXEC" -B "$(dirname "${BASH_SOURCE[0]}")/forked.py" "$2" "$1"; }
