// What a rank says when a signal ends it (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT): the signal and its
// stack, on standard error.
#pragma once

#include <string>

namespace muster {

// From now on, for all threads. A signal that the program has a handler for, or ignores, is left alone. The
// process ends by the signal afterwards, and dumps core, as it would have. `name` begins the line: "rank 1".
// A stack that has overflown is seen too in the calling thread, which gets another stack for signals where it
// has none.
void show_fatal_signals(const std::string& name);

}  // namespace muster
