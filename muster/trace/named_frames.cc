// Addresses of another process as functions. Where both have a library, this process's linker knows
// its symbols; addr2line knows those of the other's program, and of libraries that this process
// does not have.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/symbols.h"
#include "muster/trace/call_text.h"
#include "muster/trace/rank_process.h"

namespace muster {

namespace {

constexpr size_t kMostMaps = size_t{16} << 20;
constexpr size_t kMostShownFrames = 24;
// addr2line reads all of a file, and LibTorch's would take too long.
constexpr size_t kLargestAsked = size_t{128} << 20;

struct NamedFrame {
  std::string file;     // empty: not known
  uint64_t offset = 0;  // as addr2line wants it
  std::string function;
  std::string line;
  bool is_known_here = false;  // its file is in this process too
};

struct MappedRange {
  uint64_t end = 0;
  std::string file;
};

// The files that a process has mapped.
struct MappedFiles {
  std::map<uint64_t, MappedRange> ranges;  // by their first address
  std::map<std::string, uint64_t> lowest;  // each file's first address

  // The file that has this address; empty when none has.
  std::string file_at(uint64_t address) const {
    const auto above = ranges.upper_bound(address);
    if (above == ranges.begin())
      return "";
    const MappedRange& range = std::prev(above)->second;
    return address < range.end ? range.file : "";
  }
};

// Throws: io, when the process has ended.
MappedFiles files_of_process(int64_t pid) {
  MappedFiles mapped;
  for (const auto& line : split(read_file(cat("/proc/", pid, "/maps"), kMostMaps), '\n')) {
    const size_t slash = line.find('/');
    const size_t dash = line.find('-');
    if (slash == npos || dash == npos)
      continue;
    const uint64_t from = std::strtoull(line.c_str(), nullptr, 16);
    const uint64_t to = std::strtoull(line.c_str() + dash + 1, nullptr, 16);
    const auto file = line.substr(slash);
    mapped.lowest.emplace(file, from);
    mapped.ranges[from] = {to, file};
  }
  return mapped;
}

// The offset of an address in a file that this process does not have: that from the file's lowest
// address, unless the file was linked for its own addresses.
uint64_t offset_in(const std::string& file, uint64_t address, uint64_t lowest) {
  constexpr size_t kTypeAt = 16;  // the type's place in the ELF header
  constexpr char kExecutable = 2;
  const auto head = try_read_file(file, kTypeAt + 1).value_or("");
  const bool has_own_addresses = head.size() > kTypeAt && head[kTypeAt] == kExecutable;
  return has_own_addresses ? address : address - lowest;
}

// The number in hexadecimal digits behind the prefix.
std::string hex_text(const char* prefix, uint64_t number) {
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number, 16).ptr;
  return prefix + std::string(digits, end);
}

// A file that cannot be read is not.
bool is_worth_addr2line(const std::string& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return !error && size < kLargestAsked;
}

// `address` is the frame's in this process, whose linker knows the symbols.
void name_by_linker(NamedFrame& frame, uint64_t address) {
  Dl_info info{};
  link_map* map = nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  if (::dladdr1(reinterpret_cast<const void*>(address),
                &info,
                reinterpret_cast<void**>(&map),
                RTLD_DL_LINKMAP) == 0)
    return;
  frame.offset = address - map->l_addr;
  if (info.dli_sname != nullptr)
    frame.function = demangled(info.dli_sname);
}

// addr2line says two lines for each address, the function and the place, and "?" for what it does
// not know.
void take_answer(NamedFrame& frame, const std::string& function, const std::string& place) {
  if (!function.starts_with("?"))
    frame.function = function;
  if (!place.starts_with("?") && !place.ends_with("?"))
    frame.line = place.substr(0, place.find(" ("));
}

// Asks for all frames of the file at once. Without addr2line the file and the offset stay.
void name_by_addr2line(const std::string& program, std::vector<NamedFrame>& frames) {
  std::vector<NamedFrame*> asked;
  std::string offsets;
  for (NamedFrame& frame : frames) {
    if (frame.file != program)
      continue;
    offsets += hex_text(" 0x", frame.offset);
    asked.push_back(&frame);
  }
  if (asked.empty())
    return;
  const Strings said = addr2line(program, offsets);
  for (size_t i = 0; i < asked.size() && 2 * i + 1 < said.size(); ++i)
    take_answer(*asked[i], said[2 * i], said[2 * i + 1]);
}

// "  #3 train(int) at train.cc:41", or "  #3 ?? (libc.so.6+0x2a1ca)" where less is known.
std::string frame_text(size_t number, const NamedFrame& frame) {
  const auto file = frame.file.substr(frame.file.rfind('/') + 1);
  const std::string place = frame.line.empty() ? cat("(", file, hex_text("+0x", frame.offset), ")")
                                               : cat("at ", frame.line);
  const std::string function = frame.function.empty() ? "??" : readable(frame.function);
  return cat("  #", number, " ", function, " ", place);
}

// The frame of an address in the other process, as far as this one's linker knows it.
NamedFrame frame_at(uint64_t address, const MappedFiles& theirs, const MappedFiles& ours) {
  NamedFrame frame{.file = theirs.file_at(address), .offset = address, .function = {}, .line = {}};
  if (frame.file.empty())
    return frame;
  const uint64_t lowest = theirs.lowest.at(frame.file);
  const uint64_t* const here = value_at(ours.lowest, frame.file);
  frame.is_known_here = here != nullptr;
  if (here != nullptr)
    name_by_linker(frame, address - lowest + *here);
  else
    frame.offset = offset_in(frame.file, address, lowest);
  return frame;
}

// All addresses but the first are of what follows a call, and the call itself is wanted.
std::vector<NamedFrame> frames_at(const std::vector<uint64_t>& addresses, int64_t pid) {
  const MappedFiles theirs = files_of_process(pid);
  const MappedFiles ours = files_of_process(::getpid());
  return mapped_indices(std::min(addresses.size(), kMostShownFrames), [&](size_t i) {
    return frame_at(i == 0 ? addresses[i] : addresses[i] - 1, theirs, ours);
  });
}

}  // namespace

std::string named_frames(const std::vector<uint64_t>& addresses, int64_t pid) {
  std::vector<NamedFrame> frames;
  try {
    frames = frames_at(addresses, pid);
  } catch (const Error&) {
    return "";  // the process has ended
  }
  char program[4096] = {};
  if (::readlink(cat("/proc/", pid, "/exe").c_str(), program, sizeof(program) - 1) > 0)
    name_by_addr2line(program, frames);
  StringSet others;
  for (const NamedFrame& frame : frames) {
    if (!frame.is_known_here && frame.file != program && is_worth_addr2line(frame.file))
      others.insert(frame.file);
  }
  for (const auto& file : others)
    name_by_addr2line(file, frames);
  Strings lines;
  for (const size_t i : indices_of(frames)) {
    if (!is_way_to_function(frames[i].function))
      lines.push_back(frame_text(i, frames[i]));
    if (frames[i].function == "main")
      break;  // the rest is the C library's
  }
  return join(lines, "\n");
}

}  // namespace muster
