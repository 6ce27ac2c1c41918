// A caller is a connection of this user that has not said which rank it is. It becomes a rank's
// connection with its first message, the rank's number, or goes after some seconds. The deadline is
// looked at before every accept(), because a flood of strangers has no end.
#include "muster/shm/arrivals.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster::shm {

namespace {

constexpr std::chrono::seconds kToSayWho{5};  // how long a caller may be silent
constexpr size_t kMostCallers = 64;           // beyond these, the oldest makes room

}  // namespace

int poll_timeout(milliseconds left) {
  constexpr milliseconds kMost{60'000};
  return static_cast<int>(std::min(left, kMost).count());
}

bool is_of_this_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

Arrivals::Arrivals(int listener, int size, std::function<bool(int fd)> welcome)
    : listener_(listener), welcome_(std::move(welcome)), peers_(size) {}

std::vector<Fd> Arrivals::wait(const Deadline& deadline) {
  while (!missing_ranks().empty()) {
    if (deadline.passed()) {
      throw Error(ErrorCode::timeout,
                  "shared memory: expected ",
                  peers_.size(),
                  " ranks within ",
                  deadline.limit().count(),
                  " ms, missing rank(s) ",
                  join(missing_ranks(), ", "),
                  "; see whether they ended");
    }
    wait_for_some(deadline);
  }
  return std::move(peers_);
}

Ints Arrivals::missing_ranks() const {
  return filtered_indices<int>(peers_.size(), [this](int rank) { return is_missing(rank); });
}

// Rank 0 is never missing, and neither is a number that is no rank's.
bool Arrivals::is_missing(int rank) const {
  return rank >= 1 && rank < std::ssize(peers_) && !peers_[rank].valid();
}

// Waits until somebody calls or speaks, or it is time to look at the deadlines.
void Arrivals::wait_for_some(const Deadline& deadline) {
  std::vector<pollfd> polls = {{.fd = listener_, .events = POLLIN, .revents = 0}};
  auto left = deadline.left();
  for (const Caller& caller : callers_) {
    polls.push_back({.fd = caller.fd.get(), .events = POLLIN, .revents = 0});
    left = std::min(left, caller.until.left());
  }
  const int ready = ::poll(polls.data(), polls.size(), poll_timeout(left));
  if (ready < 0 && errno != EINTR)
    fail_errno("shared memory: poll", errno);
  hear_callers();
  if (ready > 0 && polls.front().revents != 0)
    accept_caller();
}

// A caller that has said something becomes a rank's connection or goes. One that was silent for too
// long goes.
void Arrivals::hear_callers() {
  std::erase_if(callers_, [this](Caller& caller) {
    int32_t rank = -1;
    const ssize_t n = ::recv(caller.fd.get(), &rank, sizeof(rank), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      return caller.until.passed();
    if (n == sizeof(rank) && is_missing(rank) && welcome_(caller.fd.get()))
      peers_[rank] = std::move(caller.fd);
    return true;
  });
}

// A connection that has gone meanwhile is no error, and one of another user is closed.
void Arrivals::accept_caller() {
  Fd fd(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) {
    if (!is_one_of(errno, EMFILE, ENFILE, ENOBUFS, ENOMEM))
      return;
    fail_errno(
        cat("shared memory: expected a descriptor for the connection of each of ",
            peers_.size() - 1,
            " ranks, got none (rank 0); raise the limit (ulimit -n), or use MUSTER_BACKEND=gloo"),
        errno);
  }
  if (!is_of_this_user(fd.get()))
    return;
  if (callers_.size() >= kMostCallers)
    callers_.erase(callers_.begin());
  callers_.push_back({.fd = std::move(fd), .until = Deadline(kToSayWho)});
}

}  // namespace muster::shm
