// Finds what a task's `on` could ever give it on each host. For check_needs.cc; a private header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/selection/scores.h"
#include "muster/placement/selection/selection.h"

namespace muster {

// Returns "this machine has 8 CPUs", or of several hosts "a host of racks.json has at most 8 CPUs".
std::string a_host_has(const Inventory& inventory, const std::string& most);

struct ReachableGpu {
  uint64_t memory_bytes = 0;
  std::string model{};
  // NOLINTNEXTLINE(modernize-use-nullptr): it takes <=> for one
  auto operator<=>(const ReachableGpu&) const = default;
};

struct ReachableHost {
  std::string name{};
  int num_cores = 0;  // 0: not known
  std::vector<ReachableGpu> gpus{};
  size_t most = 0;  // how many of them at one time
};

struct ReachableGpus {
  std::string on{};
  std::vector<ReachableHost> hosts{};  // of hosts that are alike, the first
  std::string why_none{};              // why no host has any, as far as known
  std::string on_problem{};            // of an `on` that names what is nowhere: "expected …, got …"
  size_t on_problem_at = 0;            // where: a byte of `on`
};

struct ReachOptions {
  const Inventory& inventory;
  VisibilityMasks masks{};
  const Scores& scores{};
  std::optional<Selection> gpus{};  // the run's `--gpus`; nothing: all
  int cpus = 0;                     // the run's `--cpus`; 0: all
};

// The GPUs of the run that `on` selects, now or ever: `idle`, `free:2` and `free>=20GiB` could come
// to mean any of them. Hosts that an `on` without hosts does not fit are passed over, as long as it
// fits one. Throws: SelectionError for `gpus` that the hosts have not; one of `on` is `on_problem`.
ReachableGpus reachable_gpus(const std::string& on, const ReachOptions& options);

}  // namespace muster
