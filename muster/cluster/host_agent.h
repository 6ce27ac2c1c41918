// The launcher's spine where a job has several hosts: one agent a host. It tells the others what
// this host has, starts the ranks that the common plan gives it, and does what the coordinator
// orders. What agent.h is for one host.
#pragma once

#include "muster/cluster/cluster_options.h"
#include "muster/cluster/host_telemetry.h"
#include "muster/launch/launch.h"

namespace muster {

// Runs this host's part and returns the job's exit code, the same on every host. Blocking: until
// the job has ended, and every process of it here. Throws: Error before anything is started.
int run_host_agent(const LaunchOptions& options,
                   const ClusterOptions& cluster,
                   RankSampler sampler = {});

}  // namespace muster
