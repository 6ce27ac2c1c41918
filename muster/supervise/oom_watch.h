// How many processes of this one's control group the kernel has killed for want of memory: what tells such a
// SIGKILL from all others. Used by the launcher.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

// The group's count of OOM kills; nothing where the kernel tells none. `root` holds proc/ and sys/; empty:
// this machine. Source: cgroup v2 memory.events ("oom_kill"); v1 memory.oom_control (the same since
// Linux 4.13).
std::optional<int64_t> count_oom_kills(const std::string& root = "");

// The group's memory limit in bytes; nothing without one.
std::optional<int64_t> group_memory_limit(const std::string& root = "");

}  // namespace muster
