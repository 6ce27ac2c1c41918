// Starts collectives, of the kinds that shared memory has, and messages over MPI; nothing in it
// blocks. Inside of muster_mpi; for its one thread.
#pragma once

#include "muster/comm/mpi/flight.h"
#include "muster/comm/mpi/mappings.h"
#include "muster/shm/collectives.h"

namespace muster::mpi {

using shm::Part;
using shm::Request;

// One group's place in MPI.
struct Communicators {
  MPI_Comm collectives = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;  // for send and recv, whose tags are the caller's
  MPI_Comm frames = MPI_COMM_NULL;    // for the frame of each message
  int rank = 0;
  int size = 1;
};

// The request's memory stays the caller's until the flight is over. Throws: what check() throws.
void start(const Request& request,
           const Communicators& group,
           const Reductions& reductions,
           Flight& flight);

// A message of send and recv: its frame, which the receiver compares, goes beside it. `peer` may be
// MPI_ANY_SOURCE in a receive.
void start_message(const Part& data, int peer, int tag, const Communicators& group, Flight& flight);
void start_receive_message(
    const Part& data, int peer, int tag, const Communicators& group, Flight& flight);

}  // namespace muster::mpi
