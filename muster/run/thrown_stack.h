// Tells where exceptions were thrown. It intercepts __cxa_throw, which every `throw` of the process
// calls, in the program and in LibTorch, and keeps the most recent stacks. Costs nothing unless
// something is thrown. A program that links the C++ library statically has its own `throw`, and
// gets no stacks.
#pragma once

#include <exception>

#include "muster/run/stack_text.h"

namespace muster {

// Turns this on or off for all threads.
void keep_thrown_stacks(bool keep);

// The stack of the throw that created this exception, in any thread; empty: not kept, or no longer.
Stack thrown_stack(const std::exception_ptr& error);

}  // namespace muster
