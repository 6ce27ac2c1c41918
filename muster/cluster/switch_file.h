// The network of a job's hosts, from a file: below which switches each host is.
#pragma once

#include <string>

#include "muster/placement/network_order.h"

namespace muster {

// The file has one of two forms. Slurm's topology.conf, of topology/tree and topology/block:
//
//   SwitchName=leaf1 Nodes=a[1-4]
//   SwitchName=spine Switches=leaf[1-2]
//   BlockName=b1 Nodes=a[1-4]
//
// Or each line is a host and its switches from the root to the nearest: "a1 spine/leaf1", as a
// Kubernetes node's labels give them. # begins a comment. `path` is named in errors. Throws: io;
// invalid_argument naming file and line, for a host or switch that is below two others, for
// switches in a ring, and for a file without hosts.
SwitchPaths read_switch_file(const std::string& path);
SwitchPaths parse_switch_file(const std::string& text, const std::string& path);

}  // namespace muster
