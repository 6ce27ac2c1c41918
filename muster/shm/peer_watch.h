// Sees the processes of a team's other ranks end, and marks their ranks dead in the shared memory
// at once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "muster/base/functions.h"
#include "muster/base/no_copy.h"
#include "muster/shm/end_watch.h"
#include "muster/shm/meet.h"

namespace muster::shm {

class PeerWatch : NoCopy {
 public:
  // A rank is watched by its connection, which closes, or as a process, by the id that is in the
  // memory.
  enum class By { connection, process };

  // Watches all ranks of `met` but this one. By::process falls back to the connection of a rank
  // that it cannot see as a process, one of another PID namespace. `on_death` runs in the watch's
  // thread, after the mark was set. Throws: as EndWatch.
  PeerWatch(const Met& met, int rank, By by, Callback on_death);

  // Some rank is watched by its connection.
  bool needs_connections() const { return needs_connections_; }

 private:
  bool watch_process(int peer, uint64_t own_namespace);
  void lost(int peer);

  // This team's watchers, which are forgotten with it.
  struct Watchers {
    std::shared_ptr<EndWatch> watch = EndWatch::of_this_process();
    std::vector<EndWatch::Watcher> numbers{};
    ~Watchers();
  };

  const Met& met_;
  Callback on_death_;
  bool needs_connections_ = false;
  Watchers watchers_;
};

// Identifies the namespace in which this process's id means something.
uint64_t own_pid_namespace();

}  // namespace muster::shm
