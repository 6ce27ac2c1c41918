// The control group that bounds this process's memory, of version 1 or 2 of cgroups: its limit, what it uses,
// what the kernel has killed in it. `root` holds proc/ and sys/; empty: this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

// The group's count of processes killed for want of memory; nothing where the kernel tells none.
// Source: cgroup v2 memory.events ("oom_kill"); v1 memory.oom_control (the same since Linux 4.13).
std::optional<int64_t> count_oom_kills(const std::string& root = "");

// The group's own memory limit in bytes; nothing without one.
std::optional<int64_t> group_memory_limit(const std::string& root = "");

// What can be had, in bytes: the least that the group, the groups around it and the machine have left. Page
// cache that can be dropped counts as free. Nothing when /proc tells nothing.
std::optional<int64_t> available_memory(const std::string& root = "");

}  // namespace muster
