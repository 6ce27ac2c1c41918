// A look asks the kernel for the listeners on the port, and each listener's user decides: one of
// the job's users ends the watch if it has the whole port, and a stranger ends the job. As long as
// nobody listens, a timer asks again.
#include "muster/launch/port_watch.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/launch/tcp_table.h"
#include "muster/supervise/descendants.h"

namespace muster {

namespace {

// A look takes some ten microseconds. The pause grows with the time that has gone: ranks that do
// not listen in the first second import their libraries first, or never will.
constexpr milliseconds kFirstPause{4};
constexpr milliseconds kLongestPause{250};
constexpr int kPartOfTime = 16;  // the pause is this part of the time since the watch began

// A rank may run as another user (sudo, a container's entry point), and so may what it starts. One
// that a daemon has started for it (docker run --network host) is root's and no descendant; and
// root needs no port to do harm.
bool is_of_this_job(uint32_t uid) {
  constexpr uint32_t kRoot = 0;
  return uid == kRoot || uid == ::geteuid() || uid == ::getuid() ||
         uids_of_descendants().contains(uid);
}

std::string user_text(uint32_t uid) {
  const passwd* const user = ::getpwuid(uid);
  return user == nullptr ? cat("uid ", uid) : cat("uid ", uid, " (", printable(user->pw_name), ")");
}

std::string stranger_text(int port, const TcpListener& stranger) {
  std::string process = process_with_socket(stranger.inode);
  if (process.empty())
    process = "a process";  // only root sees those of other users
  return cat("MASTER_PORT ",
             port,
             ": expected a rank of this job to listen there, got ",
             process,
             " of ",
             user_text(stranger.uid),
             "; what ranks have sent there may have reached it: start again, with another "
             "--master-port or with none, to have a free one chosen");
}

}  // namespace

PortWatch::PortWatch(EventLoop& loop, int port, TextFunction on_stranger)
    : loop_(loop), port_(port), on_stranger_(std::move(on_stranger)) {
  look();
}

void PortWatch::stop() {
  port_ = 0;
  loop_.cancel(timer_);
}

void PortWatch::look() {
  if (port_ == 0)
    return;
  const auto found = listeners_.on(port_);
  if (!found) {
    log_debug("MASTER_PORT ",
              port_,
              ": neither netlink nor /proc/net/tcp tells who listens there; not watched");
    return stop();
  }
  for (const TcpListener& listener : *found) {
    if (is_of_this_job(listener.uid))
      continue;
    const auto text = stranger_text(port_, listener);
    stop();
    return on_stranger_(text);
  }
  // If this job listens on one address alone, another is still free for others.
  if (any_of(*found, &TcpListener::has_whole_port)) {
    log_debug("MASTER_PORT ", port_, ": this job listens there; watched no more");
    return stop();
  }
  look_later();
}

void PortWatch::look_later() {
  const auto pause = std::clamp<Clock::duration>(
      (Clock::now() - since_) / kPartOfTime, kFirstPause, kLongestPause);
  loop_.cancel(timer_);
  timer_ = loop_.call_at(Clock::now() + pause, [this] {
    timer_ = 0;
    look();
  });
}

}  // namespace muster
