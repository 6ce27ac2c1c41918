// A stack as text, one line per frame, "  #3 /path/program(+0x1a2b) symbol", innermost first, in
// the form that muster/launch/source_lines.h and addr2line read: the offset is that of the call,
// not of the next instruction.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace muster {

// A thread's active calls. Taking a stack neither allocates nor locks, so a signal handler may do
// it.
struct Stack {
  static constexpr int kMostFrames = 64;
  int size = 0;
  std::array<void*, kMostFrames> frames{};

  [[gnu::noinline]] static Stack here();  // from the caller on
  void drop_first();
};

// Writes one line with its line end into `line` and returns its length; truncates it to `room`. The
// symbol is mangled. Safe in a signal handler, except that it waits for the linker's lock. `exact`:
// the address is that of an instruction, not a return address.
size_t write_frame(int number, const void* address, bool exact, char* line, size_t room);

// All lines, with demangled names, without the outer frames that `until` has too: those of muster
// and main.
std::string describe(const Stack& stack, const Stack& until);

}  // namespace muster
