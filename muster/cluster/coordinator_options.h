// The rules and the planner of a coordinator, by a job's options. For the hosts' agents, and for a
// launcher that coordinates hosts of which it is none itself.
#pragma once

#include "muster/cluster/cluster_options.h"
#include "muster/cluster/coordinator.h"
#include "muster/launch/launch.h"

namespace muster {

Coordinator::Planner planner_of(const LaunchOptions& options);
CoordinatorRules rules_of(const LaunchOptions& options, const ClusterOptions& cluster);

}  // namespace muster
