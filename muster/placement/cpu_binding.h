// Which CPUs each rank of a host is near to and, by --numa-binding, is kept on. Called by the
// planner; the launcher applies it. A private header.
//
// Source: torchrun's --numa-binding. node: all CPUs of the GPU's NUMA node. socket: all CPUs of
// that node's socket. exclusive: the node's physical cores divided evenly among its ranks, the
// first ones getting one more where they do not divide. core-complex: the cores of one last-level
// cache of the node each, those with most cores first, in turn. Only CPUs of Host::cores, which are
// those that there are for us.
#pragma once

#include <span>

#include "muster/device/inventory.h"
#include "muster/placement/plan.h"
#include "muster/placement/request.h"

namespace muster {

// Fills in `cpus` and `bind_cpus` of a host's ranks, whose devices and NUMA nodes are known
// already. Without a binding: the CPUs that the GPU's driver calls near, which stay as they are
// when set, else the node's. CPU ranks are left alone. Throws: invalid_argument when a binding
// needs what is not known (NUMA node, cores), or cores are too few.
void bind_to_cpus(const Host& host, NumaBinding binding, std::span<RankPlan> ranks);

}  // namespace muster
