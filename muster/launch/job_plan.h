// The launcher's first two steps: what machine there is, as far as the job's request needs to know,
// and the plan for it with a lease on each GPU. Called by the launcher.
#pragma once

#include "muster/launch/launch.h"
#include "muster/launch/lease_plan.h"

namespace muster {

// This machine, or the one of `options.inventory`. Asks for no more than the request needs: every
// answer delays the start. Throws: as read_inventory and probe_this_machine.
Inventory discover(const LaunchOptions& options);

// The plan that `options` ask for, or the given one. Throws: as plan; invalid_argument for a given
// plan that does not fit the inventory.
Plan place(const Inventory& inventory, const LaunchOptions& options);

// A lease on each GPU of the plan's ranks on that host. Blocking, Throws: as place_and_lease.
Leases lease_host(const Plan& plan, int host_index, const LaunchOptions& options);

// `place` with a lease on each of its GPUs (a simulated plan, one for CPUs and a dry run need
// none). Blocking: as long as `options.wait`. Throws: as plan and plan_with_leases;
// invalid_argument for a given plan that does not fit this machine.
LeasedPlan place_and_lease(const Inventory& inventory, const LaunchOptions& options);

// Places that many ranks of one host on others than the `bad` GPUs, for a job that goes on without
// them. Throws: as place_and_lease, where no others are left.
LeasedPlan place_without(const BusyGpus& bad, int num_ranks, const LaunchOptions& options);

}  // namespace muster
