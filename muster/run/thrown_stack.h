// Where exceptions were thrown. This library puts itself in front of what every `throw` of the process calls
// (__cxa_throw), a program's and LibTorch's, and keeps the stack of the last ones. Nothing is done where
// nothing is thrown. A program that links the C++ library statically has its own `throw`, and no stacks.
#pragma once

#include <exception>

#include "muster/run/stack_text.h"

namespace muster {

// From now on, in all threads.
void keep_thrown_stacks(bool keep);

// Of the throw that made this exception, in whatever thread; empty: not kept, or not any more.
Stack thrown_stack(const std::exception_ptr& error);

}  // namespace muster
