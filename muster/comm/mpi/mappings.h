// MPI's errors as muster's, and its types and reductions for muster's. Inside of muster_mpi; for
// its one thread.
#pragma once

#include <mpi.h>

#include <string>

#include "muster/shm/reduce.h"

namespace muster::mpi {

// Throws: backend_failed (peer_failed where MPI says so) with MPI's text, when `code` is not
// MPI_SUCCESS.
void check(int code, const char* what);

// "process 1: MPI_ERR_TRUNCATE: message truncated", as the MPI at hand puts it.
std::string text_of(int code);
int class_of(int code);

// The type of an element, by which MPI counts. Half and bfloat16 go as float.
MPI_Datatype type_of(shm::Type type);

// Reductions with the same meaning as in shared memory (NaN wins, bool stays bool); avg is the sum.
class Reductions {
 public:
  Reductions();  // after MPI_Init
  MPI_Op of(shm::Op op) const;

 private:
  MPI_Op ops_[8];
};

}  // namespace muster::mpi
