#include "muster/base/memory_group.h"

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
  std::string mount;
  std::string folder;  // at or below the mount
  bool v2 = false;
};

// In a container the path may be the outside's, and the mount the group itself.
MemoryGroup seen_group(const std::string& mount, const std::string& path, bool v2) {
  std::error_code error;
  const bool seen = std::filesystem::is_directory(cat(mount, path), error);
  return {.mount = mount, .folder = seen ? cat(mount, path) : mount, .v2 = v2};
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
      return seen_group(cat(root, "/sys/fs/cgroup/memory"), path, false);
    }
    if (controllers.empty()) found = seen_group(cat(root, "/sys/fs/cgroup"), path, true);
  }
  return found;
}

// The number behind `key` in a file of "key number" lines; of the whole file when there is no key.
std::optional<int64_t> number_in(const std::string& path, std::string_view key = {}) {
  const auto text = text_of_file(path);
  if (!text) return std::nullopt;
  if (key.empty()) return parse_int(trim(*text));
  for (const std::string& line : split(*text, '\n')) {
    if (!line.starts_with(key) || line.size() == key.size()) continue;
    std::string_view rest = trim(std::string_view(line).substr(key.size()));
    if (rest.ends_with(" kB")) rest = trim(rest.substr(0, rest.size() - 3));
    return parse_int(rest);
  }
  return std::nullopt;
}

std::optional<int64_t> limit_of(const MemoryGroup& group) {
  const auto limit = number_in(group.folder + (group.v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  return limit && *limit > 0 && *limit < kNoLimit ? limit : std::nullopt;
}

std::optional<int64_t> left_in(const MemoryGroup& group) {
  const auto limit = limit_of(group);
  const auto used = number_in(group.folder + (group.v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  const char* const droppable = group.v2 ? "inactive_file " : "total_inactive_file ";
  return *limit - *used + number_in(group.folder + "/memory.stat", droppable).value_or(0);
}

}  // namespace

std::optional<int64_t> count_oom_kills(const std::string& root) {
  const auto group = memory_group(root);
  if (!group) return std::nullopt;
  return number_in(group->folder + (group->v2 ? "/memory.events" : "/memory.oom_control"), "oom_kill ");
}

std::optional<int64_t> group_memory_limit(const std::string& root) {
  const auto group = memory_group(root);
  return group ? limit_of(*group) : std::nullopt;
}

std::optional<int64_t> available_memory(const std::string& root) {
  std::optional<int64_t> least;
  if (const auto kilobytes = number_in(root + "/proc/meminfo", "MemAvailable:")) least = *kilobytes * 1024;
  auto group = memory_group(root);
  while (group) {
    if (const auto left = left_in(*group)) least = least ? std::min(*least, *left) : left;
    if (group->folder.size() <= group->mount.size()) break;
    group->folder = group->folder.substr(0, group->folder.rfind('/'));
  }
  return least;
}

}  // namespace muster
