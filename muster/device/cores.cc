#include "muster/device/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <vector>

#include "muster/base/strings.h"

namespace muster {
namespace {

int cores_by_affinity() {
  // The kernel refuses a mask smaller than its own, whose size is not known beforehand.
  for (int num_cpus = 1024; num_cpus <= (1 << 20); num_cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(num_cpus);
    const size_t bytes = CPU_ALLOC_SIZE(num_cpus);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    const int cores = ok ? CPU_COUNT_S(bytes, set) : 0;
    const bool too_small = !ok && errno == EINVAL;
    CPU_FREE(set);
    if (ok) return cores;
    if (!too_small) break;
  }
  return 1;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Cores that one group's files allow; nothing when it sets no limit.
std::optional<double> quota_of(const std::string& folder) {
  const auto v2 = split(first_line(cat(folder, "/cpu.max")), ' ');
  std::optional<int64_t> quota;
  std::optional<int64_t> period;
  if (v2.size() == 2) {
    quota = parse_int(v2[0]);
    period = parse_int(v2[1]);
  } else {
    quota = parse_int(first_line(cat(folder, "/cpu.cfs_quota_us")));
    period = parse_int(first_line(cat(folder, "/cpu.cfs_period_us")));
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;  // "max", -1, or no such files
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// The tightest quota from `group` up to the root of its hierarchy: limits of parents bind too.
double tightest_quota(const std::string& root, std::string group) {
  double least = std::numeric_limits<double>::infinity();
  while (true) {
    if (const auto quota = quota_of(root + group)) least = std::min(least, *quota);
    if (group.empty()) return least;
    group.erase(group.find_last_of('/'));
  }
}

double cores_by_quota(const CoresOptions& options) {
  double least = std::numeric_limits<double>::infinity();
  std::ifstream file(options.membership);
  std::string line;
  while (std::getline(file, line)) {  // "0::/path" (v2) or "3:cpu,cpuacct:/path" (v1)
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.size() <= second + 1 || line[second + 1] != '/') continue;
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    const auto controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) {
      least = std::min(least, tightest_quota(options.cgroup_root, group));
      continue;
    }
    const auto names = split(controllers, ',');
    if (std::find(names.begin(), names.end(), "cpu") == names.end()) continue;
    least = std::min(least, tightest_quota(cat(options.cgroup_root, "/", controllers), group));
    if (controllers != "cpu")
      least = std::min(least, tightest_quota(cat(options.cgroup_root, "/cpu"), group));
  }
  return least;
}

}  // namespace

int usable_cores(const CoresOptions& options) {
  const int cores = cores_by_affinity();
  const double quota = cores_by_quota(options);
  if (quota >= cores) return std::max(cores, 1);
  return std::max(static_cast<int>(std::ceil(quota)), 1);
}

}  // namespace muster
