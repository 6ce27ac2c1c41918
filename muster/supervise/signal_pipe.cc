#include "muster/supervise/signal_pipe.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "muster/base/error.h"

namespace muster {

namespace {

// All that a handler can reach.
std::atomic<int> handlers_pipe{-1};
std::atomic<int> handlers_running{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  const int saved_errno = errno;
  ++handlers_running;
  const auto number = static_cast<unsigned char>(signal);
  // Full: thousands of signals wait to be read, and one more says nothing new.
  if (const int fd = handlers_pipe; fd >= 0)
    (void)!::write(fd, &number, 1);
  --handlers_running;
  errno = saved_errno;
}

}  // namespace

SignalPipe::SignalPipe(const std::vector<int>& signals) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    fail_errno("cannot make a pipe", errno);
  read_end_ = Fd(ends[0]);
  write_end_ = Fd(ends[1]);
  handlers_pipe = write_end_.get();
  struct sigaction ours = {};
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
}

std::optional<int> SignalPipe::take() {
  unsigned char number = 0;
  for (;;) {
    const ssize_t n = ::read(read_end_.get(), &number, 1);
    if (n == 1)
      return number;
    if (n >= 0 || errno != EINTR)
      return std::nullopt;
  }
}

}  // namespace muster
