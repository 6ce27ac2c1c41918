// How it works: the numbers are files of the control group, with other names in version 1 than in
// version 2. The turn to take memory is a lock (flock) on a folder that is the same for all
// processes that share the limit.
#include "muster/base/memory_group.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/control_group.h"
#include "muster/base/pauses.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// cgroup v1 says "no limit" with a number near 2^63.
constexpr int64_t kNoLimit = int64_t{1} << 60;
constexpr milliseconds kAskAgain{1};
constexpr milliseconds kAskAgainAtMost{20};

// The group of version 1 where both versions are there.
std::optional<ControlGroup> memory_group(const std::string& root) {
  auto groups = control_groups("memory", root);
  if (groups.empty())
    return std::nullopt;
  return std::move(groups.front());
}

std::optional<int64_t> limit_in(const std::string& folder, bool v2) {
  const auto limit = number_in_file(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const bool binds = limit && *limit > 0 && *limit < kNoLimit;
  return binds ? limit : std::nullopt;
}

// The page cache that the kernel can drop counts as left.
std::optional<int64_t> left_in(const std::string& folder, bool v2) {
  const auto limit = limit_in(folder, v2);
  const auto used = number_in_file(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !used)
    return std::nullopt;
  const char* const droppable = v2 ? "inactive_file " : "total_inactive_file ";
  return *limit - *used + number_in_file(folder + "/memory.stat", droppable).value_or(0);
}

}  // namespace

// Both files have a line "oom_kill N".
std::optional<int64_t> count_oom_kills(const std::string& root) {
  const auto group = memory_group(root);
  if (!group)
    return std::nullopt;
  return number_in_file(group->folder + (group->v2 ? "/memory.events" : "/memory.oom_control"),
                        "oom_kill ");
}

std::optional<int64_t> group_memory_limit(const std::string& root) {
  const auto group = memory_group(root);
  return group ? limit_in(group->folder, group->v2) : std::nullopt;
}

// The machine and each group around this process may have the least.
std::optional<int64_t> available_memory(const std::string& root) {
  std::optional<int64_t> least;
  if (const auto kilobytes = number_in_file(root + "/proc/meminfo", "MemAvailable:"))
    least = *kilobytes * 1024;
  const auto group = memory_group(root);
  if (!group)
    return least;
  for (const auto& folder : group->folders()) {
    if (const auto left = left_in(folder, group->v2))
      least = least ? std::min(*least, *left) : left;
  }
  return least;
}

// The folder of the whole hierarchy is the same for all whom one limit may bind, and it is nothing
// that would have to be made or could be left behind.
MemoryTurn::MemoryTurn(milliseconds patience, const std::string& root) {
  const auto group = memory_group(root);
  const std::string folder = group ? group->mount : root + "/proc";
  lock_ = Fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Deadline deadline(patience);
  for (Pauses pauses{kAskAgain, kAskAgainAtMost}; lock_.valid(); pauses.wait(deadline)) {
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0)
      return;
    const bool is_taken = errno == EWOULDBLOCK || errno == EINTR;
    if (!is_taken || deadline.passed()) {
      lock_.reset();
      return;
    }
  }
}

// To close it would not do: a child that another thread has forked meanwhile has the same lock, for
// good.
MemoryTurn::~MemoryTurn() {
  if (lock_.valid())
    ::flock(lock_.get(), LOCK_UN);
}

}  // namespace muster
