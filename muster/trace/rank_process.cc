#include "muster/trace/rank_process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
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
// LibTorch computes the gradients of a GPU's tensors in a thread of this name and a number, while
// the main thread waits for it. Without work it is in this function.
constexpr std::string_view kBackwardThread = "pt_autograd";
constexpr const char* kWithoutWork = "ReadyQueue::pop";

bool is_seen_from_here(const ActivityView& view) {
  char host[sizeof(ActivityHeader::host)] = {};
  ::gethostname(host, sizeof(host) - 1);
  struct stat own = {};
  return view.host == readable(host) && ::stat("/proc/self/ns/pid", &own) == 0 &&
         view.pid_namespace == static_cast<int64_t>(own.st_ino) && view.pid > 0 &&
         view.pid <= INT32_MAX;
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
  if (behind_name == std::string::npos)
    return std::nullopt;
  const auto fields = split(std::string_view(text).substr(behind_name + 2), ' ');
  constexpr size_t kStartTime = 19;  // of those behind the name
  if (fields.size() <= kStartTime || fields[0].size() != 1)
    return std::nullopt;
  return ProcessStat{.state = fields[0][0],
                     .start_ticks = parse_int(fields[kStartTime]).value_or(0)};
}

// The descriptor names the process for good, whatever becomes of its number.
Fd descriptor_of(const ActivityView& view) {
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(view.pid), 0)));
  const auto status = process.valid() ? stat_of(view.pid) : std::nullopt;
  if (!status || status->start_ticks != view.start_ticks)
    process.reset();
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
std::string await_answer(const std::string& path,
                         size_t before,
                         std::chrono::milliseconds patience) {
  constexpr int kStill = 10;
  const Deadline deadline(patience);
  std::string answer;
  for (int still = 0; still < kStill && !deadline.passed(); ++still) {
    std::this_thread::sleep_for(kLookForAnswer);
    const std::string now = answer_behind(path, before);
    if (now.ends_with("\nend\n"))
      return now;
    if (now.empty() || now.size() != answer.size())
      still = 0;
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

// What the process writes once `ask` has sent it the signal; empty: nothing in time.
std::string answer_of(const std::string& activity_path,
                      std::chrono::milliseconds patience,
                      const std::function<bool()>& ask) {
  struct stat status = {};
  const std::string answers = stack_path(activity_path);
  const size_t before =
      ::stat(answers.c_str(), &status) == 0 ? static_cast<size_t>(status.st_size) : 0;
  return ask() ? await_answer(answers, before, patience) : "";
}

// By number and name.
std::map<pid_t, std::string> backward_threads(int64_t pid) {
  std::map<pid_t, std::string> threads;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(cat("/proc/", pid, "/task"), error)) {
    const auto thread = parse_int(entry.path().filename().string());
    if (!thread)
      continue;
    try {
      const std::string name(trim(read_file(entry.path() / "comm", 64)));
      if (name.starts_with(kBackwardThread))
        threads[static_cast<pid_t>(*thread)] = readable(name);
    } catch (const Error&) {  // it has ended
    }
  }
  return threads;
}

// Of those that work.
std::string stacks_of_backwards(const ActivityView& view,
                                const Fd& process,
                                const std::string& path,
                                std::chrono::milliseconds patience) {
  std::string text;
  const Deadline deadline(patience);
  for (const auto& [thread, name] : backward_threads(view.pid)) {
    const std::string answer = answer_of(path, deadline.left(), [&, thread = thread] {
      // No system call names a thread for good: at least the process is still this one.
      return ::syscall(SYS_pidfd_send_signal, process.get(), 0, nullptr, 0) == 0 &&
             ::syscall(SYS_tgkill, view.pid, thread, view.stack_signal) == 0;
    });
    if (!answer.ends_with("\nend\n"))
      continue;
    const std::string stack = named_frames(addresses_in(split(answer, '\n')), view.pid);
    if (stack.find(kWithoutWork) == std::string::npos)
      text += cat("\nthread ", name, ":\n", stack);
  }
  return text;
}

}  // namespace

ProcessState process_state(const ActivityView& view) {
  if (!is_seen_from_here(view))
    return ProcessState::unknown;
  const auto status = stat_of(view.pid);
  if (!status || status->start_ticks != view.start_ticks || status->state == 'Z' ||
      status->state == 'X')
    return ProcessState::gone;
  return status->state == 'T' || status->state == 't' ? ProcessState::stopped : ProcessState::alive;
}

std::string stack_of_rank(const ActivityView& view,
                          const std::string& path,
                          std::chrono::milliseconds patience) {
  if (view.stack_signal != stack_signal() || process_state(view) != ProcessState::alive)
    return "";
  const Fd process = descriptor_of(view);
  if (!process.valid())
    return "";
  const std::string answer = answer_of(path, patience, [&] {
    return ::syscall(SYS_pidfd_send_signal, process.get(), view.stack_signal, nullptr, 0) == 0;
  });
  std::vector<std::string> lines = split(answer, '\n');
  if (answer.ends_with("\nend\n"))
    return named_frames(addresses_in(lines), view.pid) +
           stacks_of_backwards(view, process, path, patience);
  if (lines.size() > kMostLines)
    lines.resize(kMostLines);
  for (std::string& line : lines)
    line = readable(line);
  return std::string(trim(join(lines, "\n")));
}

}  // namespace muster
