// How it works: the line of /proc has the command in brackets, and behind them fields with a blank
// between them. The command may hold anything, so that the last bracket counts.
#include "muster/base/process_status.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string_view>

#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

int64_t ProcessStatus::number(size_t field) const {
  return field < fields.size() ? parse_int(fields[field]).value_or(0) : 0;
}

int64_t ProcessStatus::start_ticks() const {
  constexpr size_t kStartField = 19;
  return number(kStartField);
}

ProcessStatus process_status(pid_t pid) {
  ProcessStatus status;
  const auto text = try_read_file(cat("/proc/", pid, "/stat")).value_or("");
  // The text is "123 (name, which may hold anything) S 1 …".
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == npos || close == npos || close + 2 >= text.size())
    return status;
  status.command = text.substr(open + 1, close - open - 1);
  status.state = text[close + 2];
  status.fields = split(std::string_view(text).substr(close + 2), ' ');
  status.parent = static_cast<pid_t>(status.number(1));
  constexpr size_t kFlagsField = 6;
  constexpr int64_t kExiting = 0x4;  // the kernel's PF_EXITING
  status.is_exiting = (status.number(kFlagsField) & kExiting) != 0;
  return status;
}

uint64_t process_start_ticks(pid_t pid) {
  return process_status(pid).start_ticks();
}

namespace {

namespace fs = std::filesystem;

// `set`: the start of a line like "SigCgt:	0000000000010000", which has a bit for each signal.
bool has_signal(const std::string& file, std::string_view set, int signal) {
  const auto text = try_read_file(file).value_or("");
  const size_t at = text.find(set);
  if (at == npos)
    return false;
  const uint64_t bits = std::strtoull(text.c_str() + at + set.size(), nullptr, 16);
  return (bits >> (signal - 1) & 1) != 0;
}

}  // namespace

bool catches_signal(pid_t pid, int signal) {
  return has_signal(cat("/proc/", pid, "/status"), "\nSigCgt:", signal);
}

// The kernel unblocks what a thread waits for while it waits.
bool awaits_signal(pid_t pid, int signal) {
  const auto blocks = [&](const fs::path& thread) {
    return has_signal(thread / "status", "\nSigBlk:", signal);
  };
  const auto waits = [](const fs::path& thread) {
    return has_text(try_read_file(thread / "wchan").value_or(""), "sigtimedwait");
  };
  const auto threads = paths_in(cat("/proc/", pid, "/task"));
  const auto others = std::ranges::count_if(threads, blocks);
  const auto unblocked = filtered(threads, std::not_fn(blocks));
  if (others > 0 && !unblocked.empty() && all_of(unblocked, waits))
    return true;
  return any_of(paths_in(cat("/proc/", pid, "/fdinfo")),
                [&](const fs::path& fd) { return has_signal(fd, "\nsigmask:", signal); });
}

}  // namespace muster
