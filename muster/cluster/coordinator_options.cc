#include "muster/cluster/coordinator_options.h"

#include "muster/launch/job_plan.h"
#include "muster/launch/job_setup.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kBeyondGrace{15};

}  // namespace

Coordinator::Planner planner_of(const LaunchOptions& options) {
  return [options](const std::vector<HostFacts>& facts) {
    Inventory inventory{.source = "the job's hosts"};
    LaunchOptions here = options;
    here.request.hosts.clear();
    for (const HostFacts& host : facts) {
      inventory.hosts.push_back(host.host);
      here.request.hosts.push_back(
          {.name = host.host.name, .nproc = host.nproc, .masks = host.masks});
    }
    return place(inventory, here);
  };
}

CoordinatorRules rules_of(const LaunchOptions& options, const ClusterOptions& cluster) {
  return {.min_hosts = cluster.min_hosts,
          .max_hosts = cluster.max_hosts,
          .max_restarts = options.max_restarts,
          .replaces = options.failure_policy == FailurePolicy::replace,
          .join_timeout = cluster.join_timeout,
          .last_call = cluster.last_call,
          .stop_timeout = options.shutdown_timeout + kBeyondGrace,
          .time_limit = options.time_limit,
          .ends_at = options.limit_has_begun && options.time_limit
                         ? std::optional(Clock::now() + *options.time_limit)
                         : std::nullopt,
          .max_host_failures = cluster.max_host_failures,
          .run_folder = options.run_id == "none" ? make_uuid() : options.run_id,
          .launch = make_uuid()};
}

}  // namespace muster
