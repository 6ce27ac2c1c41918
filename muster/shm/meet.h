// The ranks of one host come to share memory here: rank 0 makes it and hands it to the others over
// a unix socket, whose name the store tells, after each has seen that the other is of its user.
// This needs no launcher.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/shm/layout.h"
#include "muster/shm/memory.h"

namespace muster::shm {

// A store that the ranks share.
struct Exchange {
  std::function<void(const std::string& key, const std::string& value)> set;
  // Blocking: until somebody has set it. Throws: timeout.
  std::function<std::string(const std::string& key)> get;
};

struct Met {
  Layout layout;  // its arenas are those that this rank has addresses for
  std::shared_ptr<SharedMemory> memory;
  // Connections that stay: at rank 0 one to every other rank (its own is none), elsewhere one to
  // rank 0. One that closes tells that the process at its other end has gone.
  std::vector<Fd> peers;

  std::byte* at(size_t offset) const { return memory->data() + offset; }
  Line& line(int rank) const { return *reinterpret_cast<Line*>(at(layout.line(rank))); }

  // Once all ranks' lines say what they have addresses for: all go on with the least.
  void agree_on_arenas();
};

// Collective: over `size` ranks of one host and one user. Throws: timeout naming the ranks that did
// not come; unavailable when there is no memory; peer_failed when rank 0 went.
Met meet(const Exchange& exchange, int rank, int size, milliseconds timeout);

}  // namespace muster::shm
