// A stack as text, a line a frame, "  #3 /path/program(+0x1a2b) symbol", innermost first. What
// muster/launch/source_lines.h reads, and addr2line: the offset is that of the call, not of what follows it.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace muster {

// The calls that a thread is in. Taking one neither allocates nor locks, so a signal handler may.
struct Stack {
  static constexpr int kMostFrames = 64;
  int size = 0;
  std::array<void*, kMostFrames> frames = {};

  [[gnu::noinline]] static Stack here();  // from the caller on
  void drop_first();
};

// Writes one line with its end into `line` and gives its length; what has no room is left out. The symbol is
// as the linker has it. Safe in a signal handler, but for the linker's lock, which it waits for. `exact`: the
// address is that of an instruction, not one to return to.
size_t write_frame(int number, const void* address, bool exact, char* line, size_t room);

// All of its lines, with the names of C++; without the outer frames that `until` has too, which are
// muster's and main's.
std::string describe(const Stack& stack, const Stack& until);

}  // namespace muster
