// The control group that bounds this process's memory, of version 1 or 2 of cgroups: its limit,
// what it uses, what the kernel has killed in it. `root` holds proc/ and sys/; empty: this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/no_copy.h"

namespace muster {

// The group's count of processes killed for want of memory; nothing where the kernel tells none.
// Source: cgroup v2 memory.events ("oom_kill"); v1 memory.oom_control (the same since Linux 4.13).
std::optional<int64_t> count_oom_kills(const std::string& root = "");

// The group's own memory limit in bytes; nothing without one.
std::optional<int64_t> group_memory_limit(const std::string& root = "");

// What can be had, in bytes: the least that the group, the groups around it and the machine have
// left. Page cache that can be dropped counts as free. Nothing when /proc tells nothing.
std::optional<int64_t> available_memory(const std::string& root = "");

// The turn to take memory. Who looks what is available and takes it while this lives, is alone in
// that among muster's processes of this host, so that no two take what is there once. Blocking:
// until those before have had theirs, or `patience`: whoever holds it for so long is stopped, or a
// stranger.
class MemoryTurn : NoCopy {
 public:
  explicit MemoryTurn(milliseconds patience = std::chrono::seconds(10),
                      const std::string& root = "");
  ~MemoryTurn();

  // Whether it is: false after the patience, and where there is nothing to lock.
  bool is_held() const { return lock_.valid(); }

 private:
  Fd lock_;
};

}  // namespace muster
