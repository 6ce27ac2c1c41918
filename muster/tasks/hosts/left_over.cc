// Every process of a run's tasks has the run's MUSTER_MARK in its environment, which its children
// inherit. That finds them all, whoever their parent is by now, as long as they are this user's:
// only those environments can be read.
#include "muster/tasks/hosts/left_over.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/folders.h"
#include "muster/base/mapped.h"
#include "muster/supervise/descendants.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kEndWithin{10};

bool has_mark(pid_t pid, const Strings& marks) {
  const auto entries = environment_entries(pid);
  return any_of(marks,
                [&](const auto& mark) { return contains(entries, cat("MUSTER_MARK=", mark)); });
}

// This user's processes that were started with one of `marks`, this one left out.
std::vector<pid_t> processes_of(const Strings& marks) {
  return filtered(numbers_in_folder("/proc"),
                  [&](pid_t pid) { return pid != ::getpid() && has_mark(pid, marks); });
}

}  // namespace

void end_left_over(const std::string& run_dir, const Strings& marks) {
  const Deadline deadline(kEndWithin);
  // A process may have started more before it was killed: the processes are looked for until there
  // are none.
  for (;;) {
    const auto left = processes_of(marks);
    if (left.empty())
      return;
    for (const pid_t pid : left)
      ::kill(pid, SIGKILL);
    if (deadline.passed()) {
      throw unavailable("--resume: expected the processes of an earlier run to end, got process ",
                        left.front(),
                        " that SIGKILL does not end (",
                        run_dir,
                        "); see ps -o stat ",
                        left.front());
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
}

}  // namespace muster
