// The handler only writes one atomic number. Programs ask for it between steps, where they can
// save.
#include "muster/supervise/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "muster/base/signal_set.h"
#include "muster/supervise/first_process.h"

namespace muster {

namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGUSR1, SIGINT};

// The first signal that came. A signal handler writes it, which a lock would not survive.
std::atomic<int> g_stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

// The handler. A second SIGINT ends the process; the kernel spares process 1 its own signals.
void remember(int signal) {
  int none = 0;
  if (g_stop_signal.compare_exchange_strong(none, signal) || signal != SIGINT)
    return;
  if (::getpid() == 1)
    ::_exit(128 + SIGINT);
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);
}

}  // namespace

// A signal that the program handles or ignores itself is left to it.
void remember_stop_signals() {
  for (const int signal : kStopSignals) {
    struct sigaction action = action_of(signal);
    if (action.sa_handler != SIG_DFL && !ends_first_process(action))
      continue;
    action = {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
}

int stop_signal() {
  return g_stop_signal.load(std::memory_order_relaxed);
}

void set_stop_signal(int signal) {
  g_stop_signal.store(signal, std::memory_order_relaxed);
}

void forget_stop_signals() {
  for (const int signal : kStopSignals) {
    if (action_of(signal).sa_handler == remember)
      ::signal(signal, SIG_DFL);
  }
  set_stop_signal(0);
  let_signals_end_first_process();
}

}  // namespace muster
