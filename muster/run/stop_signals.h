// Signals that ask a rank to stop when it can: SIGTERM of a launcher, a scheduler or a time limit, SIGUSR1 of
// a scheduler's warning, SIGINT of Ctrl-C. Used by Context alone.
#pragma once

namespace muster {

// From now on these signals are remembered, and no longer end the process: but for a second SIGINT, and for
// signals that the program handles or ignores itself.
void remember_stop_signals();

// The first that came since; 0: none.
int stop_signal();

}  // namespace muster
