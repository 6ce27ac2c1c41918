// A frame is an address. dladdr1() tells in which file it lies, where that file is loaded, and the
// nearest symbol; the difference is what addr2line takes. A signal handler writes frames by the
// same function as describe(), so that function formats without the C library and without memory.
#include "muster/run/stack_text.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "muster/base/symbols.h"

namespace muster {

namespace {

// Text in memory of a fixed size, put together without the C library's formatting, which may lock.
class FixedText {
 public:
  FixedText(char* text, size_t room) : text_(text), room_(room) {}

  void add(const char* text) {
    const size_t bytes = std::min(std::strlen(text), room_ - size_);
    std::memcpy(text_ + size_, text, bytes);
    size_ += bytes;
  }
  void add(uint64_t number, unsigned base) {
    char digits[24];
    char* at = digits + sizeof(digits) - 1;
    *at = '\0';
    do
      *--at = "0123456789abcdef"[number % base];
    while ((number /= base) != 0);
    add(at);
  }
  // Ends the line, if need be in place of the last byte, and returns its length.
  size_t end_line() {
    size_ = std::min(size_, room_ - 1);
    text_[size_++] = '\n';
    return size_;
  }

 private:
  char* text_;
  size_t room_;
  size_t size_ = 0;
};

struct Place {
  const char* module = "?";
  uint64_t offset = 0;
  const char* symbol = nullptr;
};

// The dynamic linker knows the program only by the name that it was called by, which may be
// relative to a folder that the process has left.
const char* program_path() {
  static char path[4096];
  if (path[0] == '\0' && ::readlink("/proc/self/exe", path, sizeof(path) - 1) < 0)
    return "?";
  return path;
}

// An address to return to is that of the next instruction, unless it is `exact`; the byte before it
// is part of the call. The offset is taken from the linker's base, not from the file's first byte:
// an executable that is linked to a fixed address has the base 0.
Place place_of(const void* address, bool exact) {
  const auto at = reinterpret_cast<uintptr_t>(address) - (exact ? 0 : 1);
  Dl_info info{};
  link_map* map = nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address before one to return to
  const bool found = ::dladdr1(reinterpret_cast<const void*>(at),
                               &info,
                               reinterpret_cast<void**>(&map),
                               RTLD_DL_LINKMAP) != 0;
  if (!found || map == nullptr)
    return {.offset = at};
  const bool is_program = map->l_name == nullptr || *map->l_name == '\0';
  return {.module = is_program ? program_path() : info.dli_fname,
          .offset = at - map->l_addr,
          .symbol = info.dli_sname};
}

// Whether the frame is in the same library as this function.
bool is_own(const void* frame) {
  static const char* const own = place_of(reinterpret_cast<const void*>(&is_own), true).module;
  return std::strcmp(place_of(frame, false).module, own) == 0;
}

}  // namespace

Stack Stack::here() {
  Stack stack;
  stack.size = ::backtrace(stack.frames.data(), kMostFrames);
  stack.drop_first();  // this one
  return stack;
}

void Stack::drop_first() {
  if (size == 0)
    return;
  std::copy(frames.begin() + 1, frames.begin() + size, frames.begin());
  --size;
}

size_t write_frame(int number, const void* address, bool exact, char* line, size_t room) {
  const Place place = place_of(address, exact);
  FixedText text(line, room);
  text.add("  #");
  text.add(number, 10);
  text.add(" ");
  text.add(place.module);
  text.add("(+0x");
  text.add(place.offset, 16);
  text.add(")");
  if (place.symbol != nullptr) {
    text.add(" ");
    text.add(place.symbol);
  }
  return text.end_line();
}

std::string describe(const Stack& stack, const Stack& until) {
  // The outermost frames come last in both.
  int size = stack.size;
  for (int common = until.size; size > 0 && common > 0; --size, --common) {
    if (stack.frames[size - 1] != until.frames[common - 1])
      break;
  }
  const bool cut = size < stack.size;
  while (cut && size > 0 && is_own(stack.frames[size - 1]))
    --size;
  std::string text;
  for (int i = 0; i < size; ++i) {
    const void* const address = stack.frames[i];
    char line[1024];
    std::string_view written(line, write_frame(i, address, false, line, sizeof(line)));
    if (const char* const symbol = place_of(address, false).symbol; symbol != nullptr) {
      text.append(written.substr(0, written.find(") ") + 2)).append(demangled(symbol)).append("\n");
    } else {
      text.append(written);
    }
  }
  return text;
}

}  // namespace muster
