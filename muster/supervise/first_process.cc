// How it works: signals that still have their default action get a handler that ends the process.
// A handler of the program's own, and a signal that it ignores, stay as they are.
#include "muster/supervise/first_process.h"

#include <unistd.h>

#include "muster/base/signal_set.h"

namespace muster {

namespace {

// The handler's address also tells ends_first_process who has set the action.
void end_by_signal(int signal) {
  ::_exit(128 + signal);
}

}  // namespace

void let_signals_end_first_process() {
  if (::getpid() != 1)
    return;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    struct sigaction action = action_of(signal);
    if (action.sa_handler != SIG_DFL)
      continue;
    action.sa_handler = end_by_signal;
    ::sigaction(signal, &action, nullptr);
  }
}

bool ends_first_process(const struct sigaction& action) {
  return action.sa_handler == end_by_signal;
}

}  // namespace muster
