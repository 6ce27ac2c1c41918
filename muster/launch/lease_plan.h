// From a plan to its leases: takes one for every GPU that this host's ranks get, all or none, and
// plans again around GPUs that another job has. Called by the launcher.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/launch/lease.h"
#include "muster/placement/plan.h"

namespace muster {

// Units of every GPU of the plan's ranks on `host_index`, each GPU once, in order of UUID; none for
// a simulated plan and for CPU ranks.
LeaseWishes lease_wishes(const Plan& plan, int host_index = 0);

// The descriptors of the job's leases, which ranks inherit, and as the value of MUSTER_LEASE_FD.
// One a GPU, in order of UUID, joined by commas; empty when there are none. Every rank inherits all
// of them, so that a job keeps all its GPUs until its last process has ended.
Ints lease_fds(const Leases& leases);
std::string lease_variable(const Leases& leases);

// Why each GPU is busy: "held by job 4f2a (train, pid 4711) since 12m".
using BusyGpus = std::map<GpuUuid, std::string>;
using PlanMaker = std::function<Plan(const BusyGpus&)>;

// The inventory with every busy GPU's reason as its health, so that the planner leaves it out and
// says why.
Inventory without_busy(Inventory inventory, const BusyGpus& busy);

struct LeasePlanOptions {
  int host_index = 0;  // this host, in the plan
  // Whether other GPUs will do where planned ones are busy, as for --gpus free:2. Otherwise a job
  // that asked for certain GPUs, or for all, waits for them or fails.
  bool replan = false;
  OptionalDuration wait{};  // nothing: do not wait
  milliseconds poll{200};   // while waiting
  // Called once, with a line that says for what the job waits.
  TextFunction on_wait = [](const std::string& line) {
    log_info(line);
  };
  // The end of the error: a user's choices about GPUs that stay busy.
  std::string advice =
      "wait for them with --wait, give others with --gpus, or share them with --no-lease";
};

inline constexpr milliseconds kWaitForever = milliseconds::max();

struct LeasedPlan {
  Plan plan{};
  Leases leases{};
};

// Makes a plan by `make_plan`, which is told what to leave out (nothing at first; see
// without_busy), and takes its leases; while some are refused, plans again without those GPUs, or
// waits and begins anew: `make_plan` looks at the machine again each time. Blocking: up to `wait`.
// Throws: what `make_plan` throws when nothing was left out; unavailable naming GPUs and holders
// when they stay busy; as LeaseFolder::try_take_all.
LeasedPlan plan_with_leases(const LeaseFolder& folder,
                            const PlanMaker& make_plan,
                            const LeaseNote& note,
                            const LeasePlanOptions& options = {});

// The plan that `plan_with_leases` would make now. It takes no lease, but looks at who holds what.
// Without `replan`, a note of the plan says what of it is held. Throws: as plan_with_leases.
Plan plan_around_leases(const LeaseFolder& folder,
                        const PlanMaker& make_plan,
                        const LeasePlanOptions& options = {});

}  // namespace muster
