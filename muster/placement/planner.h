// The planner: machine × request → plan. A pure function, so any captured or invented machine will do. Called
// by the launcher, by programs that start their own ranks, and by the tasks runner.
#pragma once

#include "muster/device/inventory.h"
#include "muster/placement/plan.h"
#include "muster/placement/request.h"

namespace muster {

// Gives every rank a device. On each host, in this order: the inherited mask, health (a GPU with an error is
// left out and noted), --gpus, the policy, the surplus rule. A GPU that is split by MIG is used by its
// instances. Without GPUs, ranks get CPU slots, which is noted; where some hosts have GPUs and others none,
// those others are surplus (no rank, unless a number was given). Ranks are numbered host by host; device ids
// are each host's own. Then: CPUs by the binding, shares of the global batch by scores (ranks that share a
// GPU divide its score), or equal ones without. The same arguments give the same plan. Throws:
// invalid_argument (bad request: no ranks asked for, unknown host, GPU or policy, more ranks than GPUs
// without a surplus rule, too little memory, a batch smaller than the ranks), unavailable (GPUs asked for, or
// there but all unhealthy, where none can be used); what Request::choose throws.
Plan plan(const Inventory& inventory, const Request& request);

}  // namespace muster
