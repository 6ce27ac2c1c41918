// discover() probes the machine, place() makes the plan for it, and place_and_lease() does both
// again while other jobs hold GPUs of the plan. Scores that `muster bench device` measured are read
// once, before the first plan, so that all plans of a start go by the same ones.
#include "muster/launch/job_plan.h"

#include <string>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/lookup.h"
#include "muster/base/usage.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/launch/other_users.h"
#include "muster/launch/score_cache.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/planner.h"
#include "muster/placement/selection/selection.h"

namespace muster {

namespace {

// Whether the selection takes GPUs by what they do now. Others will do then, where these have just
// been taken.
bool takes_any(const Selection& gpus) {
  using Kind = SelectionItem::Kind;
  return gpus.has({Kind::idle, Kind::free, Kind::fastest});
}

// Why a device of a given plan does not fit this host; both are empty when it does.
struct Unfit {
  std::string expected{};
  std::string got{};
};

Unfit unfit_on(const Host& host, const DeviceAssignment& device) {
  if (!device.is_gpu())
    return {};
  const auto is_it = [&](const Gpu& gpu) {
    return gpu.has(device.uuid);
  };
  const auto uuid = printable(device.uuid.value);
  const Gpu* const gpu = element_where(host.gpus, is_it);
  if (gpu == nullptr)
    return {cat("a GPU of host ", host.name), uuid};
  if (gpu->health != kHealthy)
    return {"a GPU that can be used", cat(uuid, ": ", gpu->health)};
  if (gpu->vendor != device.vendor)
    return {"the vendor that the GPU has", cat("another for ", uuid)};
  return {};
}

// Why a rank of a given plan does not fit, by its host and all its devices.
Unfit unfit_on(const Inventory& inventory, const RankPlan& rank, bool simulated) {
  const size_t num_hosts = inventory.hosts.size();
  const size_t at = rank.host_index;
  if (at >= num_hosts) {
    return {num_hosts == 1 ? "ranks of one host" : cat("ranks of ", num_hosts, " hosts"),
            cat("one on host ", printable(rank.host), " as well")};
  }
  const Host& host = inventory.hosts[at];
  if (num_hosts > 1 && rank.host != host.name)
    return {cat("host ", host.name, " as number ", at), printable(rank.host)};
  if (simulated)
    return {};
  Unfit unfit = unfit_on(host, rank.device);
  for (const DeviceAssignment& device : rank.more_devices) {
    if (unfit.got.empty())
      unfit = unfit_on(host, device);
  }
  return unfit;
}

// The plan of --plan. It fits when its GPUs are here and can be used.
Plan given_plan(const Inventory& inventory, const LaunchOptions& options) {
  Plan plan = plan_from_json(read_named("--plan", [&] { return read_small_file(options.plan); }),
                             options.plan);
  if (plan.part) {
    throw invalid_argument(
        "--plan ",
        printable(options.plan),
        ": expected a whole plan, got one host's part; give plan.json of the run's folder");
  }
  for (const RankPlan& rank : plan.ranks) {
    const Unfit unfit = unfit_on(inventory, rank, plan.simulated);
    if (unfit.got.empty())
      continue;
    throw invalid_argument("--plan ",
                           printable(options.plan),
                           ": expected ",
                           unfit.expected,
                           ", got ",
                           unfit.got,
                           " (rank ",
                           rank.rank,
                           "); make the plan on this machine");
  }
  return plan;
}

// The scores that were measured before, where the plan is made by scores and none were given.
// Batches are shared out by them only when every device has one.
Scores scores_for(const Inventory& inventory, const Request& request) {
  const bool by_speed =
      request.policy == "fastest" || request.gpus.has({SelectionItem::Kind::fastest});
  if (!request.scores.empty() || (!by_speed && request.global_batch == 0))
    return {};
  Scores scores = remembered_scores(inventory);
  const bool some_have_no_gpu =
      any_of(inventory.hosts, [](const Host& host) { return host.gpus.empty(); });
  const bool cpus = request.cpu_only || request.surplus == Surplus::cpu || some_have_no_gpu;
  return by_speed || cover_all(scores, inventory, cpus) ? scores : Scores();
}

// A given plan needs none.
Scores scores_for(const Inventory& inventory, const LaunchOptions& options) {
  return options.plan.empty() ? scores_for(inventory, options.request) : Scores();
}

// The plan by `remembered` scores, or the given plan.
Plan place_by(const Inventory& inventory, const LaunchOptions& options, const Scores& remembered) {
  if (!options.plan.empty())
    return given_plan(inventory, options);
  Request request = options.request;
  if (options.virtual_local_rank)
    request.visibility = Visibility::own;
  if (!inventory.simulated && request.masks == VisibilityMasks{})
    request.masks = inherited_masks();
  if (request.scores.empty())
    request.scores = remembered;
  Plan plan = muster::plan(inventory, request);
  if (!remembered.empty())
    plan.notes.emplace_back("scores: as `muster bench device` measured them");
  return plan;
}

// Whether other GPUs will do where other jobs hold those of the plan.
bool may_replan(const LaunchOptions& options) {
  return options.plan.empty() && takes_any(options.request.gpus);
}

// The plan as a start would change it now for what other jobs hold. Within a job, its own leases
// are no obstacle.
Plan plan_around_others(const Inventory& inventory,
                        const Plan& plan,
                        const LaunchOptions& options,
                        const Scores& remembered) {
  if (!options.lease || get_env(kLeaseVariable))
    return plan;
  const auto make_plan = [&](const BusyGpus& busy) {
    return busy.empty() ? plan : place_by(without_busy(inventory, busy), options, remembered);
  };
  try {
    return plan_around_leases(
        LeaseFolder({.create = false}), make_plan, {.replan = may_replan(options)});
  } catch (const Error& error) {
    if (!is_one_of(error.code(), ErrorCode::io, ErrorCode::failed_precondition))
      throw;
    Plan alone = plan;
    alone.notes.push_back(cat("leases of other jobs cannot be read: ", error.message()));
    return alone;
  }
}

}  // namespace

// Each detail costs time at the start: processes on GPUs, links between them, the CPU's topology.
Inventory discover(const LaunchOptions& options) {
  if (!options.inventory.empty())
    return read_named("--inventory", [&] { return read_inventory(options.inventory); });
  const Request& request = options.request;
  ProbeOptions probe;
  probe.cpu_slots = options.cpu_slots;
  probe.gpus = !request.cpu_only;
  probe.detail = GpuDetail::processes;
  const bool busy_matters = takes_any(request.gpus) || is_one_of(request.policy, "spread", "pack");
  if (busy_matters || !options.svg.empty())
    probe.detail = GpuDetail::full;
  probe.links = request.policy == "topology" || !options.svg.empty();
  probe.cpu_topology = request.numa_binding != NumaBinding::none || !options.svg.empty();
  return probe_this_machine(probe);
}

Plan place(const Inventory& inventory, const LaunchOptions& options) {
  return place_by(inventory, options, scores_for(inventory, options));
}

Leases lease_host(const Plan& plan, int host_index, const LaunchOptions& options) {
  if (lease_wishes(plan, host_index).empty())
    return {};
  // The machine is asked anew: the host may have waited for long since this launcher began.
  warn_of_other_users(
      probe_this_machine({.detail = GpuDetail::processes}).hosts.at(0), plan, host_index);
  if (!options.lease)
    return {};
  const LeaseFolder folder({.inherited = get_env(kLeaseVariable).value_or("")});
  return plan_with_leases(folder,
                          [&](const BusyGpus&) { return plan; },
                          {.job = options.run_id, .program = options.argv.at(0)},
                          {.host_index = host_index, .wait = options.wait})
      .leases;
}

LeasedPlan place_without(const BusyGpus& bad, int num_ranks, const LaunchOptions& options) {
  LaunchOptions here = options;
  here.request.nproc_per_node = num_ranks;
  here.wait = {};
  return place_and_lease(without_busy(discover(options), bad), here);
}

// The first plan is made before the folder of leases is opened: most errors come from it. Later
// plans leave busy GPUs out, and see the machine as it is then.
LeasedPlan place_and_lease(const Inventory& inventory, const LaunchOptions& options) {
  const Scores remembered = scores_for(inventory, options);
  Plan plan = place_by(inventory, options, remembered);
  if (lease_wishes(plan).empty())
    return {.plan = std::move(plan)};
  if (options.dry_run)
    return {.plan = plan_around_others(inventory, plan, options, remembered)};
  if (!options.lease) {
    warn_of_other_users(inventory.hosts.at(0), plan);
    return {.plan = std::move(plan)};
  }
  const LeaseFolder folder({.inherited = get_env(kLeaseVariable).value_or("")});
  bool first = true;
  Inventory now = inventory;
  const auto make_plan = [&](const BusyGpus& busy) {
    if (std::exchange(first, false))
      return plan;
    if (options.wait)
      now = discover(options);
    return place_by(busy.empty() ? now : without_busy(now, busy), options, remembered);
  };
  LeasedPlan leased = plan_with_leases(folder,
                                       make_plan,
                                       {.job = options.run_id, .program = options.argv.at(0)},
                                       {.replan = may_replan(options), .wait = options.wait});
  warn_of_other_users(now.hosts.at(0), leased.plan);
  return leased;
}

}  // namespace muster
