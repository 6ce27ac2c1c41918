// torchrun's flags of a rendezvous, and the hosts that flags name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/cli/run_flags.h"
#include "muster/cluster/hostfile.h"

namespace muster {

struct HostPort {
  std::string host;
  std::optional<int> port = {};
};

// "host:port", "[::1]:port", "tcp://host:port"; the port may be left out. Throws: invalid_argument
// naming the flag.
HostPort parse_host_port(const std::string& text, const std::string& flag);

// An IPv6 address gets brackets, so that a port can follow it.
std::string in_brackets(const std::string& host);

// Reads the file of --topology, before all that asks for hosts. Throws: io, invalid_argument.
void read_topology(RunFlags& flags);

// Returns the hosts of --hosts or --hostfile. Throws: io; invalid_argument for both.
std::vector<HostSpec> listed_hosts(const RunFlags& flags);

}  // namespace muster
