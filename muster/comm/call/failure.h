// Turns what LibTorch, Gloo and NCCL throw into muster::Error with one clear line.
#pragma once

#include <exception>
#include <string>

#include "muster/base/functions.h"

namespace muster {

// Runs `body`; whatever it throws that is no muster::Error comes out as one: peer_failed for lost
// connections, timeout for deadlines, unavailable for rendezvous failures, else backend_failed. The
// message begins with `what`.
void translate_failures(const std::string& what, const Callback& body);

// A handler calls it to throw on what it has caught, translated: `what` is put together for a
// failure only.
[[noreturn]] void rethrow_translated(const std::string& what);

// An exception's first line, without LibTorch's C++ stack.
std::string first_line(const std::exception& error);

}  // namespace muster
