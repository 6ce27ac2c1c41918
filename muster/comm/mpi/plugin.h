// libmuster and a library muster_mpi_… agree on one function behind one C symbol.
#pragma once

#include <chrono>
#include <memory>

#include "muster/base/clock.h"
#include "muster/comm/host/carrier.h"
#include "muster/shm/meet.h"

namespace muster {

// The ranks that want to be a group, and the store through which they tell each other which MPI
// process each of them is.
struct MpiRendezvous {
  shm::Exchange exchange;
  int rank = 0;
  int size = 1;
  bool of_all_ranks = true;  // they must then be MPI_COMM_WORLD's, number by number
  milliseconds timeout{0};
};

struct MpiPlugin {
  std::unique_ptr<Carrier> (*connect)(const MpiRendezvous& rendezvous);
};

// The symbol that it exports.
inline constexpr auto kMpiPluginSymbol = "muster_mpi_plugin";

}  // namespace muster
