#include "muster/shm/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"

namespace muster::shm {

namespace {

Line& line_of(const Met& met, int rank) {
  return *reinterpret_cast<Line*>(met.memory->data() + met.layout.line(rank));
}

}  // namespace

uint64_t own_pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

// A connection alone would not do: a rank's own children may hold its end of it.
PeerWatch::PeerWatch(const Met& met, int rank, bool by_id, std::function<void()> on_death)
    : met_(met), on_death_(std::move(on_death)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_.valid()) fail_errno("shared memory: eventfd", errno);
  const uint64_t own_namespace = own_pid_namespace();
  for (int peer = 0; peer < met.layout.size; ++peer) {
    if (peer == rank) continue;
    const Line& line = line_of(met, peer);
    const pid_t pid = line.pid.load();
    if (by_id && pid != ::getpid() && own_namespace != 0 && line.pid_namespace == own_namespace) {
      Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      if (!process.valid() && errno == ESRCH) mark(peer);
      if (process.valid()) {
        watched_.push_back({peer, process.get()});
        processes_.push_back(std::move(process));
      }
    }
    const Fd& connection = met.peers[static_cast<size_t>(peer)];
    if (connection.valid()) watched_.push_back({peer, connection.get()});
  }
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { run(); });
}

PeerWatch::~PeerWatch() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void PeerWatch::mark(int rank) {
  std::atomic<RankState>& state = line_of(met_, rank).state;
  for (RankState expected : {RankState::absent, RankState::here})
    state.compare_exchange_strong(expected, RankState::dead);
}

void PeerWatch::run() {
  std::vector<pollfd> polls;
  for (const Watched& watched : watched_) polls.push_back({.fd = watched.fd, .events = POLLIN, .revents = 0});
  polls.push_back({.fd = stop_.get(), .events = POLLIN, .revents = 0});
  for (;;) {
    if (::poll(polls.data(), polls.size(), -1) < 0) continue;
    if (polls.back().revents != 0) return;
    bool any = false;
    for (size_t i = 0; i < watched_.size(); ++i) {
      if (polls[i].revents == 0) continue;
      polls[i].fd = -1;  // no more
      mark(watched_[i].rank);
      any = true;
    }
    if (any) on_death_();
  }
}

}  // namespace muster::shm
