// Ranks find each other here: an init method leads to a store that all of them share.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/init_options.h"

namespace muster {

// The store of `options.init_method`, and rank and size as explicit arguments or the environment
// give them.
struct Rendezvous {
  StorePtr store;
  int rank = 0;
  int world_size = 1;
  std::string master_addr;
  bool serves_store = false;  // in this process: it must stay while others use the store
};

// Blocking: until the store answers. Throws: invalid_argument, unavailable (unresolvable or silent
// master, port taken).
Rendezvous open_rendezvous(const InitOptions& options);

}  // namespace muster
