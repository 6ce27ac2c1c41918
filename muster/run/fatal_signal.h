// What a rank tells when a signal ends it (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT): the signal
// and its stack, on standard error and in its error file.
#pragma once

#include <string>

namespace muster {

// Takes effect for all threads. Signals that the program handles or ignores are left alone.
// Afterwards the process ends by the signal and dumps core, as it would have. `name` starts the
// line: "rank 1". Stack overflows are reported too in the calling thread, which gets an alternate
// signal stack if it has none.
void show_fatal_signals(const std::string& name);

// Has the signal and the stack written to this error file too, in torchrun's JSON form, unless
// there is one by then. Empty: to none.
void tell_fatal_signals_to(const std::string& error_file);

}  // namespace muster
