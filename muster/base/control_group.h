// The control groups that bound this process, of version 1 or 2 of cgroups: where the kernel shows
// them, and the CPU time that they leave. memory_group.h has their memory. `root` holds proc/ and
// sys/; empty: this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/strings.h"

namespace muster {

struct ControlGroup {
  std::string mount;   // the place of its hierarchy
  std::string folder;  // at or below the mount
  bool v2 = false;

  // Its own folder, then those of the groups around it, whose limits bind too.
  Strings folders() const;
};

// This process's group in each hierarchy that bounds `controller` ("cpu", "memory"): version 1's
// first. In a container the path may be the outside's, and the mount the group itself.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root = "");

// The tightest CPU quota of these groups and those around them, in cores; nothing without one.
// Source: cgroup v2 cpu.max; v1 cpu.cfs_quota_us and cpu.cfs_period_us.
std::optional<double> cpu_quota(const std::string& root = "");

// The number behind `key` in a file of "key number" lines (kB are left as they are), or of the
// whole file when there is no key; nothing where there is none.
std::optional<int64_t> number_in_file(const std::string& path, std::string_view key = {});

}  // namespace muster
