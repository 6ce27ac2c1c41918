// The backend over MPI, for clusters whose network or launcher speaks that best. MPI lives in
// libraries of their own, muster_mpi_ompi (Open MPI), muster_mpi_mpich (MPICH and what has its ABI)
// or muster_mpi (another one that CMake found). The one that belongs to this process's launcher is
// loaded here when the backend is asked for; MUSTER_MPI_LIBRARY names another.
//
// All calls of MPI are made in one thread of that library, so operations run beside the caller. MPI
// is initialised there unless the program has done so (with MPI_THREAD_MULTIPLE), and finalised
// when the process exits if every group was shut down in good order; else it is not, and the MPI
// launcher ends the job. MPI cannot end an operation: after a timeout the group is over.
#pragma once

#include <chrono>

#include "muster/base/clock.h"
#include "muster/comm/call/c10d_pointers.h"

namespace muster {

// Collective: over the `size` ranks, each a process of one MPI_COMM_WORLD; with `of_all_ranks` they
// must be its processes, number by number. CPU tensors; others are copied to the host and back.
// Throws: failed_precondition when no MPI launcher has started this process; unavailable without
// the library; invalid_argument when rank and size are not MPI's, naming both; timeout;
// backend_failed with MPI's text.
BackendPtr make_mpi(
    const StorePtr& store, int rank, int size, bool of_all_ranks, milliseconds timeout);

}  // namespace muster
