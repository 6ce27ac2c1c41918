// Addresses of another process as functions. Where both have a library, this process's linker knows
// its symbols; addr2line knows those of the other's program, and of libraries that this process
// does not have.
#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"
#include "muster/trace/call_text.h"
#include "muster/trace/rank_process.h"

namespace muster {

namespace {

constexpr size_t kMostMaps = size_t{16} << 20;
constexpr size_t kMostShownFrames = 24;
constexpr size_t kLargestAsked = size_t{128}
                                 << 20;  // addr2line reads all of a file: LibTorch's takes too long

struct NamedFrame {
  std::string file;     // empty: not known
  uint64_t offset = 0;  // as addr2line wants it
  std::string function;
  std::string line;
  bool is_known_here = false;  // its file is in this process too
};

// Where a file lies in a process: its lowest address.
std::map<std::string, uint64_t> files_of_process(
    int64_t pid, std::map<uint64_t, std::pair<uint64_t, std::string>>& ranges) {
  std::map<std::string, uint64_t> lowest;
  for (const std::string& line : split(read_file(cat("/proc/", pid, "/maps"), kMostMaps), '\n')) {
    const size_t slash = line.find('/');
    const size_t dash = line.find('-');
    if (slash == std::string::npos || dash == std::string::npos)
      continue;
    const uint64_t from = std::strtoull(line.c_str(), nullptr, 16);
    const uint64_t to = std::strtoull(line.c_str() + dash + 1, nullptr, 16);
    const std::string file = line.substr(slash);
    lowest.emplace(file, from);
    ranges[from] = {to, file};
  }
  return lowest;
}

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : symbol;
}

// Of a file that this process does not have; the offset is that from the file's lowest address,
// unless the file was linked for its own addresses.
uint64_t offset_in(const std::string& file, uint64_t address, uint64_t lowest) {
  constexpr size_t kTypeAt = 16;  // of the ELF header
  constexpr char kExecutable = 2;
  try {
    const std::string head = read_file(file, kTypeAt + 1);
    return head.size() > kTypeAt && head[kTypeAt] == kExecutable ? address : address - lowest;
  } catch (const Error&) {
    return address - lowest;
  }
}

bool is_worth_addr2line(const std::string& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return !error && size < kLargestAsked;
}

// In this process.
void name_by_linker(NamedFrame& frame, uint64_t address) {
  Dl_info info = {};
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

void name_by_addr2line(const std::string& program, std::vector<NamedFrame>& frames) {
  std::vector<NamedFrame*> asked;
  std::string command = cat("timeout -s KILL 5 addr2line -Cfe ", shell_quoted(program));
  for (NamedFrame& frame : frames) {
    if (frame.file != program)
      continue;
    char offset[24];
    std::snprintf(offset, sizeof(offset), " 0x%llx", static_cast<unsigned long long>(frame.offset));
    command += offset;
    asked.push_back(&frame);
  }
  if (asked.empty())
    return;
  try {
    const auto said = split(output_of_shell(command + " 2>/dev/null", "stack"), '\n');
    for (size_t i = 0; i < asked.size() && 2 * i + 1 < said.size(); ++i) {
      if (!said[2 * i].starts_with("?"))
        asked[i]->function = said[2 * i];
      if (!said[2 * i + 1].starts_with("?") && !said[2 * i + 1].ends_with("?"))
        asked[i]->line = said[2 * i + 1].substr(0, said[2 * i + 1].find(" ("));
    }
  } catch (const Error&) {
    return;  // no addr2line here: the file and the offset stay
  }
}

// The C++ library's, to what a std::function or a thread holds.
bool is_way_to_function(const NamedFrame& frame) {
  for (const char* const part : {"std::__invoke_impl<",
                                 "::type std::__invoke",
                                 "std::_Function_handler<",
                                 "std::thread::_Invoker<"}) {
    if (frame.function.find(part) != std::string::npos)
      return true;
  }
  return false;
}

std::string frame_text(size_t number, const NamedFrame& frame) {
  char offset[24];
  std::snprintf(offset, sizeof(offset), "+0x%llx", static_cast<unsigned long long>(frame.offset));
  const std::string place =
      frame.line.empty() ? cat("(", frame.file.substr(frame.file.rfind('/') + 1), offset, ")")
                         : cat("at ", frame.line);
  return cat(
      "  #", number, " ", frame.function.empty() ? "??" : readable(frame.function), " ", place);
}

}  // namespace

std::string named_frames(const std::vector<uint64_t>& addresses, int64_t pid) {
  std::map<uint64_t, std::pair<uint64_t, std::string>> theirs, ours;
  std::map<std::string, uint64_t> their_files, our_files;
  try {
    their_files = files_of_process(pid, theirs);
    our_files = files_of_process(::getpid(), ours);
  } catch (const Error&) {
    return "";  // it has ended
  }
  std::vector<NamedFrame> frames;
  for (size_t i = 0; i < addresses.size() && i < kMostShownFrames; ++i) {
    const uint64_t at = i == 0 ? addresses[i] : addresses[i] - 1;  // the call, not what follows it
    NamedFrame frame{.file = {}, .offset = at, .function = {}, .line = {}};
    const auto above = theirs.upper_bound(at);
    if (above != theirs.begin() && at < std::prev(above)->second.first) {
      frame.file = std::prev(above)->second.second;
      const auto here = our_files.find(frame.file);
      frame.is_known_here = here != our_files.end();
      if (frame.is_known_here)
        name_by_linker(frame, at - their_files[frame.file] + here->second);
      else
        frame.offset = offset_in(frame.file, at, their_files[frame.file]);
    }
    frames.push_back(std::move(frame));
  }
  char program[4096] = {};
  if (::readlink(cat("/proc/", pid, "/exe").c_str(), program, sizeof(program) - 1) > 0)
    name_by_addr2line(program, frames);
  std::set<std::string> others;
  for (const NamedFrame& frame : frames) {
    if (!frame.is_known_here && frame.file != program && is_worth_addr2line(frame.file))
      others.insert(frame.file);
  }
  for (const std::string& file : others)
    name_by_addr2line(file, frames);
  std::vector<std::string> lines;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (!is_way_to_function(frames[i]))
      lines.push_back(frame_text(i, frames[i]));
    if (frames[i].function == "main")
      break;  // the rest is the C library's
  }
  return join(lines, "\n");
}

}  // namespace muster
