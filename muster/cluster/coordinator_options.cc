// Translates the options of the launcher for the coordinator, which knows neither flags nor
// machines.
#include "muster/cluster/coordinator_options.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/launch/job_plan.h"
#include "muster/launch/job_setup.h"

namespace muster {

namespace {

// After the grace period of its ranks a host has this long to report their end.
constexpr std::chrono::seconds kBeyondGrace{15};
// Where a grace period is short, or none, starts that fail still pause so long.
constexpr milliseconds kShortestPause{1'000};

}  // namespace

// Plans for the hosts as they were when they joined.
Coordinator::Planner planner_of(const LaunchOptions& options) {
  return [options](std::vector<HostFacts> facts) {
    Inventory inventory{.source = "the job's hosts"};
    LaunchOptions here = options;
    here.request.hosts.clear();
    for (HostFacts& host : facts) {
      here.request.hosts.push_back(
          {.name = host.host.name, .nproc = host.nproc, .masks = host.masks});
      inventory.hosts.push_back(std::move(host.host));
    }
    return place(inventory, here);
  };
}

// The run's folder and the launch have new ids here, the same for all hosts.
CoordinatorRules rules_of(const LaunchOptions& options, const ClusterOptions& cluster) {
  std::optional<TimePoint> ends_at;
  if (options.limit_has_begun && options.time_limit)
    ends_at = Clock::now() + *options.time_limit;
  return {.min_hosts = cluster.min_hosts,
          .max_hosts = cluster.max_hosts,
          .max_restarts = options.max_restarts,
          .replaces = options.failure_policy == FailurePolicy::replace,
          .join_timeout = cluster.join_timeout,
          .last_call = cluster.last_call,
          .stop_timeout = options.shutdown_timeout + kBeyondGrace,
          .longest_pause = std::max(options.shutdown_timeout / 2, kShortestPause),
          .time_limit = options.time_limit,
          .ends_at = ends_at,
          .max_host_failures = cluster.max_host_failures,
          .run_folder = options.run_id == "none" ? make_uuid() : options.run_id,
          .launch = make_uuid(),
          .shares_gpus = !options.lease,
          .sees_ends_late = cluster.backend == "etcd",
          .switches = options.request.switches,
          .host_blocks = blocks_of_mesh(
              options.request.mesh, options.request.nproc_per_node, cluster.max_hosts)};
}

}  // namespace muster
