// A caller is a connection of this user that has not said which rank it is. It becomes a rank's
// connection with its first message, a number, or goes after some seconds. The deadline is looked
// at before every accept(), because a flood of strangers has no end.
#include "muster/shm/arrivals.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster::shm {

namespace {

constexpr std::chrono::seconds kToSayWho{5};  // for a caller
constexpr size_t kMostSilent = 64;            // callers; the oldest makes room

}  // namespace

int poll_timeout(std::chrono::milliseconds left) {
  constexpr std::chrono::milliseconds kMost{60'000};
  return static_cast<int>(std::min(left, kMost).count());
}

bool of_this_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

Arrivals::Arrivals(int listener, int size, std::function<bool(int fd)> welcome)
    : listener_(listener), welcome_(std::move(welcome)), peers_(size) {}

std::vector<Fd> Arrivals::wait(const Deadline& deadline) {
  while (!missing().empty()) {
    if (deadline.passed()) {
      throw Error(ErrorCode::timeout,
                  cat("shared memory: expected ",
                      peers_.size(),
                      " ranks within ",
                      deadline.limit().count(),
                      " ms, missing rank(s) ",
                      join(missing(), ", "),
                      "; see whether they ended"));
    }
    wait_for_some(deadline);
  }
  return std::move(peers_);
}

std::vector<int> Arrivals::missing() const {
  std::vector<int> ranks;
  for (int rank = 1; rank < std::ssize(peers_); ++rank) {
    if (is_missing(rank))
      ranks.push_back(rank);
  }
  return ranks;
}

// Whether it is the number of another rank that has not come.
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
  take_callers();
  if (ready > 0 && polls.front().revents != 0)
    take_caller();
}

// Callers that have said something become ranks or go.
void Arrivals::take_callers() {
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

// Accepts one connection. One that has gone meanwhile is no error; one of another user is closed.
void Arrivals::take_caller() {
  Fd fd(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
      return;
    fail_errno(
        cat("shared memory: expected a descriptor for the connection of each of ",
            peers_.size() - 1,
            " ranks, got none (rank 0); raise the limit (ulimit -n), or use MUSTER_BACKEND=gloo"),
        errno);
  }
  if (!of_this_user(fd.get()))
    return;
  if (callers_.size() >= kMostSilent)
    callers_.erase(callers_.begin());
  callers_.push_back({.fd = std::move(fd), .until = Deadline(kToSayWho)});
}

}  // namespace muster::shm
