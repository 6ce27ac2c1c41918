// A thread that sees the processes of a team's other ranks end, and marks their ranks dead in the shared
// memory at once.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "muster/base/fd.h"
#include "muster/shm/meet.h"

namespace muster::shm {

class PeerWatch {
 public:
  // Watches the ranks of `met` but this one: their connections, and with `by_id` the processes too whose ids
  // are in the memory. `on_death` runs in the thread, after the mark was set.
  PeerWatch(const Met& met, int rank, bool by_id, std::function<void()> on_death);
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;
  ~PeerWatch();

 private:
  struct Watched {
    int rank;
    int fd;  // readable when its process has gone
  };
  void run();
  void mark(int rank);

  const Met& met_;
  std::function<void()> on_death_;
  std::vector<Fd> processes_;
  std::vector<Watched> watched_;
  Fd stop_;
  std::thread thread_;
};

// Identifies the namespace in which this process's id means something.
uint64_t own_pid_namespace();

}  // namespace muster::shm
