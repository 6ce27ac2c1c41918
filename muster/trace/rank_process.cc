#include "muster/trace/rank_process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/activity.h"
#include "muster/trace/call_text.h"
#include "muster/trace/stack_request.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kLookForAnswer{20};
constexpr size_t kLongestAnswer = size_t{64} << 10;
constexpr size_t kMostLines = 60;

bool is_seen_from_here(const ActivityView& view) {
  char host[sizeof(ActivityHeader::host)] = {};
  ::gethostname(host, sizeof(host) - 1);
  struct stat own = {};
  return view.host == readable(host) && ::stat("/proc/self/ns/pid", &own) == 0 &&
         view.pid_namespace == static_cast<int64_t>(own.st_ino) && view.pid > 0 && view.pid <= INT32_MAX;
}

struct ProcessStat {
  char state = '?';
  int64_t start_ticks = 0;
};

std::optional<ProcessStat> stat_of(int64_t pid) {
  std::string text;
  try {
    text = read_file(cat("/proc/", pid, "/stat"), 4096);
  } catch (const Error&) {
    return std::nullopt;
  }
  const size_t behind_name = text.rfind(") ");
  if (behind_name == std::string::npos) return std::nullopt;
  const auto fields = split(std::string_view(text).substr(behind_name + 2), ' ');
  constexpr size_t kStartTime = 19;  // of those behind the name
  if (fields.size() <= kStartTime || fields[0].size() != 1) return std::nullopt;
  return ProcessStat{.state = fields[0][0], .start_ticks = parse_int(fields[kStartTime]).value_or(0)};
}

// The descriptor names the process for good, whatever becomes of its number.
Fd descriptor_of(const ActivityView& view) {
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(view.pid), 0)));
  const auto status = process.valid() ? stat_of(view.pid) : std::nullopt;
  if (!status || status->start_ticks != view.start_ticks) process.reset();
  return process;
}

std::string answer_behind(const std::string& path, size_t before) {
  try {
    const std::string text = read_file(path, before + kLongestAnswer);
    return text.size() > before ? text.substr(before) : "";
  } catch (const Error&) {
    return "";  // no answer yet
  }
}

// The handler's ends in "end"; faulthandler's is there when it has not grown for a while.
std::string await_answer(const std::string& path, size_t before, std::chrono::milliseconds patience) {
  constexpr int kStill = 10;
  const Deadline deadline(patience);
  std::string answer;
  for (int still = 0; still < kStill && !deadline.passed(); ++still) {
    std::this_thread::sleep_for(kLookForAnswer);
    const std::string now = answer_behind(path, before);
    if (now.ends_with("\nend\n")) return now;
    if (now.empty() || now.size() != answer.size()) still = 0;
    answer = now;
  }
  return answer;
}

// The first line is the thread.
std::vector<uint64_t> addresses_in(const std::vector<std::string>& lines) {
  std::vector<uint64_t> addresses;
  for (size_t i = 1; i + 2 < lines.size(); ++i)
    addresses.push_back(std::strtoull(lines[i].c_str(), nullptr, 16));
  return addresses;
}

}  // namespace

ProcessState process_state(const ActivityView& view) {
  if (!is_seen_from_here(view)) return ProcessState::unknown;
  const auto status = stat_of(view.pid);
  if (!status || status->start_ticks != view.start_ticks || status->state == 'Z' || status->state == 'X')
    return ProcessState::gone;
  return status->state == 'T' || status->state == 't' ? ProcessState::stopped : ProcessState::alive;
}

std::string stack_of_rank(const ActivityView& view, const std::string& path,
                          std::chrono::milliseconds patience) {
  if (view.stack_signal != stack_signal() || process_state(view) != ProcessState::alive) return "";
  const Fd process = descriptor_of(view);
  if (!process.valid()) return "";
  struct stat status = {};
  const std::string answers = stack_path(path);
  const size_t before = ::stat(answers.c_str(), &status) == 0 ? static_cast<size_t>(status.st_size) : 0;
  if (::syscall(SYS_pidfd_send_signal, process.get(), view.stack_signal, nullptr, 0) != 0) return "";
  const std::string answer = await_answer(answers, before, patience);
  std::vector<std::string> lines = split(answer, '\n');
  if (answer.ends_with("\nend\n")) return named_frames(addresses_in(lines), view.pid);
  if (lines.size() > kMostLines) lines.resize(kMostLines);
  for (std::string& line : lines) line = readable(line);
  return std::string(trim(join(lines, "\n")));
}

}  // namespace muster
