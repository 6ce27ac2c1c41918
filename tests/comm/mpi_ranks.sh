#!/usr/bin/env bash
# mpi_ranks.sh KIND RANKS COMMAND...: the command as ranks under the mpirun of an MPI, ompi or mpich, with
# MUSTER_BACKEND=mpi. 77, and a line why, where muster was built without that MPI or its mpirun cannot start anything.
# MPI_LIBRARY is what was built for it.
set -euo pipefail
kind=$1 ranks=$2
shift 2
skip() { echo "skipped: $*"; exit 77; }
[ -n "${MPI_LIBRARY:-}" ] || skip "muster was built without this MPI ($kind)"
case $kind in
  ompi)
    mpirun=$(command -v mpirun.openmpi || command -v mpirun) || skip "no mpirun of Open MPI"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    start=("$mpirun" --oversubscribe --bind-to none -n "$ranks" -x MUSTER_BACKEND) ;;
  mpich)
    mpirun=$(command -v mpiexec.hydra || command -v mpirun.mpich) || skip "no mpiexec of MPICH"
    start=("$mpirun" -bind-to none -n "$ranks") ;;
  *) echo "expected ompi or mpich, got $kind"; exit 2 ;;
esac
# Of ranks that end at once, MPICH's mpiexec sometimes fails to hear: asked three times.
starts() { said=$("${start[@]}" true 2>&1); }
starts || starts || starts || skip "$mpirun cannot start processes here: $(head -n 3 <<<"$said" | tr '\n' ' ')"
# As the launcher sets them, and nothing else.
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
export MUSTER_BACKEND=mpi OMP_NUM_THREADS=1
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"  # the MPI libraries leave memory behind at their end
exec "${start[@]}" "$@"
