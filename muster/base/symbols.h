// The names of functions in programs and libraries, for stacks that people read.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

// The name as the source has it; a symbol of C is no mangled name, and stays as it is. It
// allocates: not for handlers of signals.
std::string demangled(const char* symbol);

// Whether the function is the C++ library's way to what a std::function or a thread holds.
bool is_way_to_function(const std::string& function);

// What addr2line says of these offsets in a file, " 0x1a2b 0x2c3d": two lines for each, the
// function and the place, with "?" for what it does not know. Nothing where there is no addr2line,
// or no such file any more. Blocking: some seconds at most.
Strings addr2line(const std::string& file, const std::string& offsets);

}  // namespace muster
