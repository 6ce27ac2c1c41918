// The flags of a job of several hosts: torchrun's of a rendezvous, and muster's of the hosts to
// reach.
#pragma once

#include <optional>
#include <string>

#include "muster/cli/run_options.h"
#include "muster/cluster/cluster_options.h"
#include "muster/cluster/hostfile.h"
#include "muster/cluster/remote_launch.h"

namespace muster {

// Reads the file of --topology, before all that asks for hosts. Throws: io, invalid_argument.
void read_topology(RunFlags& flags);

// Returns the hosts of --hosts or --hostfile, as they stand there. Throws: io; invalid_argument for
// both.
HostSpecs hosts_in(const std::string& hosts, const std::string& hostfile);

// The same in the order of --topology.
HostSpecs listed_hosts(const RunFlags& flags);

// Warns of names in --rdzv-conf that nobody reads: torchrun takes any, and its back ends read what
// they know.
void warn_of_unknown_conf(const RunFlags& flags);

// Says which flags have no effect where one host is all there is.
void warn_of_flags_for_several_hosts(const RunFlags& flags);

// Returns the hosts to start agents on; nothing if this command is one host's own. Throws:
// invalid_argument; io.
std::optional<RemoteOptions> to_remote_options(const RunFlags& flags);

// Returns how this host finds the others; nothing if the job has one host. Throws: invalid_argument
// naming the flag.
std::optional<ClusterOptions> to_cluster_options(const RunFlags& flags);

}  // namespace muster
