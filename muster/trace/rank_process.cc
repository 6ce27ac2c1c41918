// How it works: a process is the file's if it is on this host, in this PID namespace, and began
// when the file says. It is asked for its stack by a signal to its pidfd, so that no other process
// gets it, and the answer comes in a file: addresses from muster's own handler, text from Python's.
#include "muster/trace/rank_process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/functions.h"
#include "muster/base/host_identity.h"
#include "muster/base/lookup.h"
#include "muster/base/process_status.h"
#include "muster/base/strings.h"
#include "muster/trace/activity.h"
#include "muster/trace/call_text.h"
#include "muster/trace/stack_request.h"

namespace muster {

namespace {

constexpr milliseconds kLookForAnswer{20};
constexpr size_t kLongestAnswer = size_t{64} << 10;
constexpr size_t kMostLines = 60;
// LibTorch computes the gradients of a GPU's tensors in a thread of this name and a number, while
// the main thread waits for it. Without work it is in this function.
constexpr std::string_view kBackwardThread = "pt_autograd";
constexpr auto kWithoutWork = "ReadyQueue::pop";
// The answer of muster's own handler ends so.
constexpr auto kEnd = "\nend\n";

// Whether the process has its number here too.
bool is_seen_from_here(const ActivityView& view) {
  const uint64_t own_namespace = namespace_inode("pid");
  const bool has_number = view.pid > 0 && view.pid <= INT32_MAX;
  return has_number && view.host == activity_host_name() && own_namespace != 0 &&
         std::cmp_equal(view.pid_namespace, own_namespace);
}

// The process's number, which fits after is_seen_from_here().
pid_t pid_of(const ActivityView& view) {
  return static_cast<pid_t>(view.pid);
}

// The state of the file's process, as /proc has it; nothing when it has ended, and its number may
// be another's.
std::optional<char> state_of(const ActivityView& view) {
  const ProcessStatus status = process_status(pid_of(view));
  if (status.fields.empty() || status.start_ticks() != view.start_ticks)
    return std::nullopt;
  return status.state;
}

// The descriptor names the process for good, whatever becomes of its number.
Fd descriptor_of(const ActivityView& view) {
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_of(view), 0)));
  if (process.valid() && !state_of(view))
    process.reset();
  return process;
}

// Answers are appended to the file, so that this one begins behind what was there.
std::string answer_behind(const std::string& path, size_t before) {
  const auto text = try_read_file(path, before + kLongestAnswer).value_or("");
  return text.size() > before ? text.substr(before) : "";
}

// The handler's answer says where it ends; that of Python's faulthandler is there when it has not
// grown for a while.
std::string await_answer(const std::string& path, size_t before, milliseconds patience) {
  constexpr int kStill = 10;
  const Deadline deadline(patience);
  std::string answer;
  for (int still = 0; still < kStill && !deadline.passed(); ++still) {
    std::this_thread::sleep_for(kLookForAnswer);
    const auto now = answer_behind(path, before);
    if (now.ends_with(kEnd))
      return now;
    if (now.empty() || now.size() != answer.size())
      still = 0;
    answer = now;
  }
  return answer;
}

// The first line is the thread, the last ones are the answer's end.
std::vector<uint64_t> addresses_in(const Strings& lines) {
  std::vector<uint64_t> addresses;
  for (size_t i = 1; i + 2 < lines.size(); ++i)
    addresses.push_back(std::strtoull(lines[i].c_str(), nullptr, 16));
  return addresses;
}

// The text that the process writes once `ask` has sent it the signal; empty: nothing in time.
std::string answer_of(const std::string& activity_path,
                      milliseconds patience,
                      const Condition& ask) {
  struct stat status{};
  const auto answers = stack_path(activity_path);
  const size_t before = ::stat(answers.c_str(), &status) == 0 ? status.st_size : 0;
  return ask() ? await_answer(answers, before, patience) : "";
}

// The threads' names by their numbers.
std::map<pid_t, std::string> backward_threads(int64_t pid) {
  std::map<pid_t, std::string> threads;
  for (const auto& path : paths_in(cat("/proc/", pid, "/task"))) {
    const auto thread = parse_count(file_name(path));
    const auto comm = try_read_file(path / "comm", 64).value_or("");
    const std::string_view name = trim(comm);
    if (thread && name.starts_with(kBackwardThread))
      threads[*thread] = readable(name);
  }
  return threads;
}

// The stacks of those that work, one after the other.
std::string stacks_of_backwards(const ActivityView& view,
                                const Fd& process,
                                const std::string& path,
                                milliseconds patience) {
  std::string text;
  const Deadline deadline(patience);
  for (const auto& [thread, name] : backward_threads(view.pid)) {
    const auto answer = answer_of(path, deadline.left(), [&, thread = thread] {
      // No system call names a thread for good: at least the process is still this one.
      return ::syscall(SYS_pidfd_send_signal, process.get(), 0, nullptr, 0) == 0 &&
             ::syscall(SYS_tgkill, view.pid, thread, view.stack_signal) == 0;
    });
    if (!answer.ends_with(kEnd))
      continue;
    const auto stack = named_frames(addresses_in(split(answer, '\n')), view.pid);
    if (!has_text(stack, kWithoutWork))
      text += cat("\nthread ", name, ":\n", stack);
  }
  return text;
}

}  // namespace

ProcessState process_state(const ActivityView& view) {
  if (!is_seen_from_here(view))
    return ProcessState::unknown;
  constexpr std::pair<char, ProcessState> kStates[] = {{'X', ProcessState::gone},
                                                       {'Z', ProcessState::gone},
                                                       {'T', ProcessState::stopped},
                                                       {'t', ProcessState::stopped}};
  return lookup(kStates, state_of(view).value_or('X'), ProcessState::alive);
}

std::string stack_of_rank(const ActivityView& view,
                          const std::string& path,
                          milliseconds patience) {
  if (view.stack_signal != stack_signal() || process_state(view) != ProcessState::alive)
    return "";
  const Fd process = descriptor_of(view);
  if (!process.valid())
    return "";
  const auto answer = answer_of(path, patience, [&] {
    return ::syscall(SYS_pidfd_send_signal, process.get(), view.stack_signal, nullptr, 0) == 0;
  });
  Strings lines = split(answer, '\n');
  if (answer.ends_with(kEnd))
    return named_frames(addresses_in(lines), view.pid) +
           stacks_of_backwards(view, process, path, patience);
  if (lines.size() > kMostLines)
    lines.resize(kMostLines);
  for (std::string& line : lines)
    line = readable(line);
  return std::string(trim(join(lines, "\n")));
}

}  // namespace muster
