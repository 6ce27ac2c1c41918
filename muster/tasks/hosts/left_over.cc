#include "muster/tasks/hosts/left_over.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/supervise/descendants.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kEndWithin{10};

// Processes of this user that were started with MUSTER_MARK of one of `marks`.
std::vector<pid_t> processes_of(const std::vector<std::string>& marks) {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    const auto pid = parse_int(entry->d_name);
    if (!pid || *pid == ::getpid())
      continue;
    const auto entries = environment_entries(static_cast<pid_t>(*pid));
    const bool ours = std::ranges::any_of(marks, [&](const std::string& mark) {
      return std::ranges::find(entries, cat("MUSTER_MARK=", mark)) != entries.end();
    });
    if (ours)
      found.push_back(static_cast<pid_t>(*pid));
  }
  return found;
}

}  // namespace

void end_left_over(const std::string& run_dir, const std::vector<std::string>& marks) {
  const Deadline deadline(kEndWithin);
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
