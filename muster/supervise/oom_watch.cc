#include "muster/supervise/oom_watch.h"

#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr int64_t kNoLimit = int64_t{1} << 60;  // cgroup v1 says "no limit" with a number near 2^63

std::optional<std::string> text_of_file(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

struct MemoryGroup {
  std::string folder;
  bool v2 = false;
};

// In a container the path may be the outside's, and the mount the group itself.
std::string seen_folder(const std::string& mount, const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(cat(mount, path), error) ? cat(mount, path) : mount;
}

// Of /proc/self/cgroup's lines: "0::/path" is version 2's, "9:memory:/path" version 1's, which goes first
// where both are there.
std::optional<MemoryGroup> memory_group(const std::string& root) {
  std::optional<MemoryGroup> found;
  for (const std::string& line : split(text_of_file(root + "/proc/self/cgroup").value_or(""), '\n')) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (cat(",", controllers, ",").find(",memory,") != std::string::npos) {
      return MemoryGroup{seen_folder(cat(root, "/sys/fs/cgroup/memory"), path), false};
    }
    if (controllers.empty()) found = MemoryGroup{seen_folder(cat(root, "/sys/fs/cgroup"), path), true};
  }
  return found;
}

}  // namespace

std::optional<int64_t> count_oom_kills(const std::string& root) {
  const auto group = memory_group(root);
  if (!group) return std::nullopt;
  const auto text = text_of_file(group->folder + (group->v2 ? "/memory.events" : "/memory.oom_control"));
  for (const std::string& line : split(text.value_or(""), '\n')) {
    if (line.starts_with("oom_kill ")) return parse_int(trim(line.substr(9)));
  }
  return std::nullopt;
}

std::optional<int64_t> group_memory_limit(const std::string& root) {
  const auto group = memory_group(root);
  if (!group) return std::nullopt;
  const auto text = text_of_file(group->folder + (group->v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto limit = parse_int(trim(text.value_or("")));
  return limit && *limit > 0 && *limit < kNoLimit ? limit : std::nullopt;
}

}  // namespace muster
