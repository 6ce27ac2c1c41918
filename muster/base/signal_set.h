// Sets of signals, as pthread_sigmask takes them, and what a signal does now. Safe in a signal
// handler.
#pragma once

#include <signal.h>

#include <initializer_list>

namespace muster {

inline sigset_t signal_set(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals)
    sigaddset(&set, signal);
  return set;
}

// The default for a signal that does not exist.
inline struct sigaction action_of(int signal) {
  struct sigaction action{};
  ::sigaction(signal, nullptr, &action);
  return action;
}

}  // namespace muster
