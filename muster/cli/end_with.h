// A program that starts `muster` and must not outlive its jobs, as the Python package: it names a
// descriptor in MUSTER_END_WITH and keeps the other end. For main.cc.
#pragma once

namespace muster {

// From now on this process gets SIGTERM once the other end of the descriptor is closed. What it
// starts has neither the descriptor nor the variable. Does nothing without the variable.
// Throws: invalid_argument for a variable that names no open descriptor.
void end_with_parent();

}  // namespace muster
