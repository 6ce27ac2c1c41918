// The planner: machine × request → plan. A pure function, so it works for any captured or invented
// machine. Called by the launcher, by programs that start their own ranks, and by the tasks runner.
#pragma once

#include "muster/device/inventory.h"
#include "muster/placement/plan.h"
#include "muster/placement/request.h"

namespace muster {

// Gives every rank a device. It applies on each host, in this order: the inherited mask, health (a
// GPU with an error is left out and noted), --gpus, the policy, the surplus rule. A GPU that is
// split by MIG is used through its instances. Without GPUs, ranks get CPU slots, which is noted. If
// only some hosts have GPUs, the other hosts are surplus (they get no ranks, unless a number was
// given). Ranks are numbered host by host; device ids are local to each host. Finally come CPUs by
// the binding, and shares of the global batch by scores (ranks that share a GPU divide its score),
// or equal shares without scores. The same arguments give the same plan. Throws: invalid_argument
// (no ranks asked for, unknown host, GPU or policy, more ranks than GPUs without a surplus rule,
// too little memory, a batch smaller than the number of ranks), unavailable (GPUs are asked for, or
// exist but are all unhealthy, and none can be used); whatever Request::choose throws.
Plan plan(const Inventory& inventory, const Request& request);

}  // namespace muster
