// How it works: /proc/self/cgroup names this process's group in each hierarchy, and the hierarchies
// are mounted below /sys/fs/cgroup. Limits of the groups around it bind too, so they are read on
// the way up to the mount. A file that is not there says nothing.
#include "muster/base/control_group.h"

#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// The file's text; empty when it cannot be read.
std::string text_of_file(const std::string& path) {
  return try_read_file(path).value_or("");
}

// In a container the path may be the outside's; then the mount itself is the group.
ControlGroup seen_group(const std::string& mount, const std::string& path, bool v2) {
  const auto folder = cat(mount, path);
  ControlGroup group{.mount = mount, .folder = is_folder(folder) ? folder : mount, .v2 = v2};
  while (group.folder.size() > mount.size() && group.folder.back() == '/')
    group.folder.pop_back();
  return group;
}

// `quota` is the time that the group may use in each `period`. Both are above 0; "max" and -1 are
// no quota.
std::optional<double> quota_of(std::optional<int64_t> quota, std::optional<int64_t> period) {
  if (quota.value_or(0) <= 0 || period.value_or(0) <= 0)
    return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// The file of version 2 is "200000 100000" or "max 100000".
std::optional<double> quota_in(const std::string& folder, bool v2) {
  if (!v2)
    return quota_of(number_in_file(folder + "/cpu.cfs_quota_us"),
                    number_in_file(folder + "/cpu.cfs_period_us"));
  const auto text = text_of_file(folder + "/cpu.max");
  const auto words = words_of(text);
  return words.size() == 2 ? quota_of(parse_int(words[0]), parse_int(words[1])) : std::nullopt;
}

// A line of /proc/self/cgroup: "0::/path" is version 2's, "3:cpu,cpuacct:/path" version 1's.
struct GroupLine {
  std::string controllers;  // empty: version 2's
  std::string path;
};

std::optional<GroupLine> parse_group_line(const std::string& line) {
  const size_t first = line.find(':');
  if (first == npos)
    return std::nullopt;
  const size_t second = line.find(':', first + 1);
  if (second == npos)
    return std::nullopt;
  GroupLine parsed{.controllers = line.substr(first + 1, second - first - 1),
                   .path = line.substr(second + 1)};
  return parsed.path.starts_with('/') ? std::optional(parsed) : std::nullopt;
}

}  // namespace

// Each folder is cut at its last slash until the mount is left.
Strings ControlGroup::folders() const {
  Strings found = {folder};
  while (found.back().size() > mount.size())
    found.push_back(found.back().substr(0, found.back().rfind('/')));
  return found;
}

// A hierarchy of version 1 is mounted under all of its controllers' names, or under one.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root) {
  const std::string base = root + "/sys/fs/cgroup";
  std::vector<ControlGroup> found;
  for (const auto& text : split(text_of_file(root + "/proc/self/cgroup"), '\n')) {
    const auto line = parse_group_line(text);
    if (!line)
      continue;
    if (line->controllers.empty()) {
      found.push_back(seen_group(base, line->path, true));
    } else if (contains(split(line->controllers, ','), controller)) {
      const auto by_all = cat(base, "/", line->controllers);
      const std::string mount = is_folder(by_all) ? by_all : cat(base, "/", controller);
      found.insert(found.begin(), seen_group(mount, line->path, false));
    }
  }
  return found;
}

// The tightest of all groups binds.
std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    for (const auto& folder : group.folders()) {
      const auto quota = quota_in(folder, group.v2);
      if (quota && (!least || *quota < *least))
        least = quota;
    }
  }
  return least;
}

// A key counts only at the beginning of a line, and with a number behind it.
std::optional<int64_t> number_in_file(const std::string& path, std::string_view key) {
  const auto text = text_of_file(path);
  if (key.empty())
    return parse_int(trim(text));
  for (const auto& line : split(text, '\n')) {
    const bool has_number = line.starts_with(key) && line.size() > key.size();
    if (!has_number)
      continue;
    std::string_view rest = trim(std::string_view(line).substr(key.size()));
    if (rest.ends_with(" kB"))
      rest = trim(rest.substr(0, rest.size() - 3));
    return parse_int(rest);
  }
  return std::nullopt;
}

}  // namespace muster
