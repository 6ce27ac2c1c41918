// Sets of signals, as pthread_sigmask takes them. Safe in a signal handler.
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

}  // namespace muster
