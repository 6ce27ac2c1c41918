// A rank is watched as a process where that can be had: its own children may hold its end of the
// connection open. Either way its end is written into its line of the shared memory, where the
// ranks that wait for it look.
#include "muster/shm/peer_watch.h"

#include <atomic>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "muster/base/indices_of.h"

namespace muster::shm {

uint64_t own_pid_namespace() {
  struct stat info{};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

PeerWatch::PeerWatch(const Met& met, int rank, By by, Callback on_death)
    : met_(met), on_death_(std::move(on_death)) {
  const uint64_t own_namespace = own_pid_namespace();
  for (const int peer : indices_below(met.layout.size)) {
    if (peer == rank || (by == By::process && watch_process(peer, own_namespace)))
      continue;
    const Fd& connection = met.peers[peer];
    if (!connection.valid())
      continue;
    needs_connections_ = true;
    watchers_.numbers.push_back(
        watchers_.watch->watch_connection(connection.get(), [this, peer] { lost(peer); }));
  }
}

PeerWatch::Watchers::~Watchers() {
  for (const EndWatch::Watcher number : numbers)
    watch->forget(number);
}

// False where the process cannot be seen from here. A rank that is a thread of this process ends
// with it and needs no watch.
bool PeerWatch::watch_process(int peer, uint64_t own_namespace) {
  const Line& line = met_.line(peer);
  if (own_namespace == 0 || line.pid_namespace != own_namespace)
    return false;
  const pid_t pid = line.pid.load();
  if (pid == ::getpid())
    return true;
  const auto watcher = watchers_.watch->watch_process(pid, [this, peer] { lost(peer); });
  if (watcher)
    watchers_.numbers.push_back(*watcher);
  return watcher.has_value();
}

// A rank that left in good order, or gave up, keeps that state: it says more than its end does.
void PeerWatch::lost(int peer) {
  std::atomic<RankState>& state = met_.line(peer).state;
  for (RankState expected : {RankState::absent, RankState::here})
    state.compare_exchange_strong(expected, RankState::dead);
  on_death_();
}

}  // namespace muster::shm
