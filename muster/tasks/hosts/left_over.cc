// Every process of a run's tasks has the run's MUSTER_MARK in its environment, which its children
// inherit. That finds them all, whoever their parent is by now, as long as they are this user's:
// only those environments can be read.
#include "muster/tasks/hosts/left_over.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/supervise/descendants.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kEndWithin{10};

bool has_mark(pid_t pid, const std::vector<std::string>& marks) {
  const auto entries = environment_entries(pid);
  return std::ranges::any_of(
      marks, [&](const std::string& mark) { return contains(entries, cat("MUSTER_MARK=", mark)); });
}

// This user's processes that were started with one of `marks`, this one left out.
std::vector<pid_t> processes_of(const std::vector<std::string>& marks) {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    const auto number = parse_int(entry->d_name);
    if (!number || *number == ::getpid())
      continue;
    const auto pid = static_cast<pid_t>(*number);
    if (has_mark(pid, marks))
      found.push_back(pid);
  }
  return found;
}

}  // namespace

void end_left_over(const std::string& run_dir, const std::vector<std::string>& marks) {
  const Deadline deadline(kEndWithin);
  // A process may have started more before it was killed: the processes are looked for until there
  // are none.
  for (;;) {
    const std::vector<pid_t> left = processes_of(marks);
    if (left.empty())
      return;
    for (const pid_t pid : left)
      ::kill(pid, SIGKILL);
    if (deadline.passed()) {
      throw Error(ErrorCode::unavailable,
                  cat("--resume: expected the processes of an earlier run to end, got process ",
                      left.front(),
                      " that SIGKILL does not end (",
                      run_dir,
                      "); see ps -o stat ",
                      left.front()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace muster
