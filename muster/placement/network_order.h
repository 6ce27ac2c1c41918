// The order of hosts in a network of switches: those under one switch are numbered one after the
// other, so that a ring of ranks crosses each uplink once in each direction, and the inner axes of
// a mesh stay below as few switches as they can. Pure; the command line and the coordinator call it
// before the planner, which numbers ranks host by host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "muster/base/lists.h"
#include "muster/base/mesh_shape.h"
#include "muster/base/strings.h"

namespace muster {

// The switches above each host, by its name: from the network's root to the nearest one.
using SwitchPaths = std::map<std::string, Strings>;

// The path of a host; empty if the network does not name it, also without its domain.
Strings switches_of(const SwitchPaths& paths, const std::string& host);

// The order in which hosts are numbered, as positions in `hosts`: switches come in the order of
// their first hosts, and so do a switch's hosts. `blocks` are the numbers of hosts that belong
// together, each a multiple of the one before (blocks_of_mesh()). Of each size, as many blocks as
// possible lie below one switch, for every switch of the network; the inner size comes first. Hosts
// that are left over there follow. A host that the network does not name is below no switch.
Indices network_order(const SwitchPaths& paths, const Strings& hosts, const Int64s& blocks = {});

// The numbers of hosts that the ranks of the inner axes fill: for dp=4,pp=2,tp=16 with 8 ranks a
// host, 2 for tp and 4 for pp and tp. Nothing for axes that stay within a host, for those that end
// within one, and from an axis on whose size is not known (-1). Without `ranks_of_host`, the hosts
// have as many ranks each as the mesh gives them.
Int64s blocks_of_mesh(const MeshAxes& axes, std::optional<int64_t> ranks_of_host, int64_t hosts);

}  // namespace muster
