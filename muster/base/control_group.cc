#include "muster/base/control_group.h"

#include <algorithm>
#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

std::string text_of_file(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return "";
  }
}

ControlGroup seen_group(const std::string& mount, const std::string& path, bool v2) {
  std::error_code error;
  const bool seen = std::filesystem::is_directory(cat(mount, path), error);
  ControlGroup group{.mount = mount, .folder = seen ? cat(mount, path) : mount, .v2 = v2};
  while (group.folder.size() > mount.size() && group.folder.back() == '/')
    group.folder.pop_back();
  return group;
}

// "200000 100000" and "max 100000" are version 2's.
std::optional<double> quota_in(const std::string& folder, bool v2) {
  std::optional<int64_t> quota;
  std::optional<int64_t> period;
  if (v2) {
    const std::string text = text_of_file(folder + "/cpu.max");
    const auto words = split(trim(text), ' ');
    if (words.size() != 2)
      return std::nullopt;
    quota = parse_int(words[0]);
    period = parse_int(words[1]);
  } else {
    quota = number_in_file(folder + "/cpu.cfs_quota_us");
    period = number_in_file(folder + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0)
    return std::nullopt;  // "max", -1, or no such files
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

std::vector<std::string> ControlGroup::folders() const {
  std::vector<std::string> found = {folder};
  while (found.back().size() > mount.size())
    found.push_back(found.back().substr(0, found.back().rfind('/')));
  return found;
}

// Of /proc/self/cgroup's lines: "0::/path" is version 2's, "3:cpu,cpuacct:/path" version 1's, which
// is mounted under all of its controllers' names, or under one.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root) {
  std::vector<ControlGroup> found;
  for (const std::string& line : split(text_of_file(root + "/proc/self/cgroup"), '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.size() <= second + 1 || line[second + 1] != '/')
      continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    const std::string base = root + "/sys/fs/cgroup";
    if (controllers.empty()) {
      found.push_back(seen_group(base, path, true));
      continue;
    }
    const auto names = split(controllers, ',');
    if (std::find(names.begin(), names.end(), controller) == names.end())
      continue;
    std::error_code error;
    const bool by_all = std::filesystem::is_directory(cat(base, "/", controllers), error);
    found.insert(
        found.begin(),
        seen_group(
            cat(base, "/", by_all ? std::string_view(controllers) : controller), path, false));
  }
  return found;
}

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    for (const std::string& folder : group.folders()) {
      const auto quota = quota_in(folder, group.v2);
      if (quota && (!least || *quota < *least))
        least = quota;
    }
  }
  return least;
}

std::optional<int64_t> number_in_file(const std::string& path, std::string_view key) {
  const std::string text = text_of_file(path);
  if (key.empty())
    return parse_int(trim(text));
  for (const std::string& line : split(text, '\n')) {
    if (!line.starts_with(key) || line.size() == key.size())
      continue;
    std::string_view rest = trim(std::string_view(line).substr(key.size()));
    if (rest.ends_with(" kB"))
      rest = trim(rest.substr(0, rest.size() - 3));
    return parse_int(rest);
  }
  return std::nullopt;
}

}  // namespace muster
