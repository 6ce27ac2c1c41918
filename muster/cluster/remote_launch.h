// One command for many hosts: starts an agent on each over ssh, coordinates them, passes on what
// they print, and ends them all with itself.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/cluster/cluster_options.h"
#include "muster/cluster/hostfile.h"
#include "muster/launch/launch.h"

namespace muster {

struct RemoteOptions {
  HostSpecs hosts{};
  // A command that prints the hosts there are now; asked again and again.
  std::string discovery{};
  // The command that reaches a host; the host's name and a command follow. Empty: ssh.
  Strings ssh{};
  std::string remote_muster{};  // the program's path on the other hosts; empty: as here
};

// Runs the job and returns its exit code. Blocking: until every agent has ended. Throws: Error
// before anything is started.
int run_on_hosts(const LaunchOptions& options,
                 const ClusterOptions& cluster,
                 const RemoteOptions& remote);

}  // namespace muster
