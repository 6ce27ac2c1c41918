// What a coordinator needs of a job's options: the hosts' agents, and who coordinates hosts of
// which it is none itself.
#pragma once

#include "muster/cluster/cluster_options.h"
#include "muster/cluster/coordinator.h"
#include "muster/launch/launch.h"

namespace muster {

Coordinator::Planner planner_of(const LaunchOptions& options);
CoordinatorRules rules_of(const LaunchOptions& options, const ClusterOptions& cluster);

}  // namespace muster
