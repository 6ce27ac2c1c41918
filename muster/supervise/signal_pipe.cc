// How it works: the handler writes the signal's number into a pipe, and does nothing else. It finds
// the pipe in a global variable, so that there is one SignalPipe at a time; whoever ends it waits
// for handlers that still run in other threads before it closes the pipe.
#include "muster/supervise/signal_pipe.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "muster/base/mapped.h"
#include "muster/base/signal_set.h"

namespace muster {

namespace {

// A handler can reach nothing but these.
std::atomic<int> handlers_pipe{-1};
std::atomic<int> handlers_running{0};
std::atomic<uint64_t> handlers_stops{0};  // a bit for each signal that is one
std::atomic<int> caught_stop{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

uint64_t bit_of(int signal) {
  return uint64_t{1} << (signal - 1);
}

void on_signal(int signal) {
  const int saved_errno = errno;
  ++handlers_running;
  const unsigned char number = signal;
  if ((handlers_stops & bit_of(signal)) != 0)
    caught_stop = signal;
  // A full pipe takes nothing: thousands of signals wait to be read, and one more says nothing new.
  if (const int fd = handlers_pipe; fd >= 0)
    (void)!::write(fd, &number, 1);
  --handlers_running;
  errno = saved_errno;
}

}  // namespace

SignalPipe::SignalPipe(Ints& stops, const Ints& others) : pipe_(open_pipe(O_NONBLOCK)) {
  if (action_of(SIGHUP).sa_handler == SIG_IGN)
    std::erase(stops, SIGHUP);
  Ints signals = stops;
  append_all(signals, others);
  handlers_pipe = pipe_.write_end.get();
  for (const int signal : stops)
    handlers_stops |= bit_of(signal);
  struct sigaction ours{};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  sigset_t caught;
  sigemptyset(&caught);
  before_.reserve(signals.size());
  for (const int signal : signals) {
    Before before{.signal = signal, .action = {}};
    if (::sigaction(signal, &ours, &before.action) != 0)
      continue;
    before_.push_back(before);
    sigaddset(&caught, signal);
  }
  // Blocked by whoever started this program, they would never come.
  ::pthread_sigmask(SIG_UNBLOCK, &caught, &old_mask_);
}

SignalPipe::~SignalPipe() {
  ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  for (const Before& before : before_)
    ::sigaction(before.signal, &before.action, nullptr);
  handlers_pipe = -1;
  while (handlers_running != 0)
    ::sched_yield();  // one in another thread may still hold the descriptor
  handlers_stops = 0;
  caught_stop = 0;
}

int caught_stop_signal() {
  return caught_stop;
}

std::optional<int> SignalPipe::take() {
  unsigned char number = 0;
  for (;;) {
    const ssize_t n = ::read(fd(), &number, 1);
    if (n == 1)
      return number;
    if (n >= 0 || errno != EINTR)
      return std::nullopt;
  }
}

}  // namespace muster
