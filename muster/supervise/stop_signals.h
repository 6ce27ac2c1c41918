// Signals that ask a rank to stop when it can: SIGTERM from a launcher, a scheduler or a time
// limit, SIGUSR1 as a scheduler's warning, SIGINT from Ctrl-C. Used by Context and by the C
// interface.
#pragma once

namespace muster {

// From now on these signals are remembered and no longer end the process, except a second SIGINT,
// and except signals that the program handles or ignores itself.
void remember_stop_signals();

// The first signal since then; 0: none.
int stop_signal();

// As if `signal` had come: for a program that handles a signal itself.
void set_stop_signal(int signal);

// Undoes remember_stop_signals(), and forgets the signal that came.
void forget_stop_signals();

}  // namespace muster
