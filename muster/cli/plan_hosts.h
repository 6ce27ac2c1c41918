// The plan of a job over hosts that are reached by ssh, before anything is started there:
// `muster plan --hosts` and `muster run --hosts --dry-run`.
#pragma once

#include "muster/cluster/remote_launch.h"
#include "muster/launch/launch.h"

namespace muster {

// Asks every host what it has (`muster devices --json`), and prints the plan, as `run` does in a
// dry run. Returns the exit code. Blocking: until all have answered. Throws: Error naming the host
// that did not; as plan.
int plan_on_hosts(const LaunchOptions& options, const RemoteOptions& remote);

}  // namespace muster
