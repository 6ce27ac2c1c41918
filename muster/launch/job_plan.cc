#include "muster/launch/job_plan.h"

#include <algorithm>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/launch/other_users.h"
#include "muster/launch/score_cache.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/planner.h"
#include "muster/placement/selection/selection.h"

namespace muster {

namespace {

// Whether the selection takes GPUs by what they do now: then others will do where these have just
// been taken.
bool takes_any(const Selection& gpus) {
  using Kind = SelectionItem::Kind;
  return gpus.has({Kind::idle, Kind::free, Kind::fastest});
}

// A device of a plan from a file; empty when it is here and can be used, else what was expected and
// is not.
struct Unfit {
  std::string expected = {};
  std::string got = {};
};
Unfit unfit_on(const Host& host, const DeviceAssignment& device) {
  if (device.kind != DeviceAssignment::Kind::cuda)
    return {};
  const auto is_it = [&](const Gpu& gpu) {
    const auto same = [&](const MigInstance& mig) {
      return mig.uuid == device.uuid;
    };
    return gpu.uuid == device.uuid || std::any_of(gpu.mig.begin(), gpu.mig.end(), same);
  };
  const std::string uuid = printable(device.uuid.value);
  const auto gpu = std::find_if(host.gpus.begin(), host.gpus.end(), is_it);
  if (gpu == host.gpus.end())
    return {cat("a GPU of host ", host.name), uuid};
  if (gpu->health != kHealthy)
    return {"a GPU that can be used", cat(uuid, ": ", gpu->health)};
  if (gpu->vendor != device.vendor)
    return {"the vendor that the GPU has", cat("another for ", uuid)};
  return {};
}

// A plan from a file fits when its GPUs are here and can be used.
Plan given_plan(const Inventory& inventory, const LaunchOptions& options) {
  Plan plan = plan_from_json(read_small_file(options.plan), options.plan);
  for (const RankPlan& rank : plan.ranks) {
    const auto refuse = [&](const std::string& expected, const std::string& got) {
      throw Error(ErrorCode::invalid_argument,
                  cat("--plan ",
                      options.plan,
                      ": expected ",
                      expected,
                      ", got ",
                      got,
                      " (rank ",
                      rank.rank,
                      "); make the plan on this machine"));
    };
    const auto at = static_cast<size_t>(rank.host_index);
    if (at >= inventory.hosts.size())
      refuse(inventory.hosts.size() == 1 ? "ranks of one host"
                                         : cat("ranks of ", inventory.hosts.size(), " hosts"),
             cat("one on host ", printable(rank.host), " as well"));
    const Host& host = inventory.hosts[at];
    if (inventory.hosts.size() > 1 && rank.host != host.name)
      refuse(cat("host ", host.name, " as number ", at), printable(rank.host));
    if (plan.simulated)
      continue;
    std::vector<DeviceAssignment> devices = rank.more_devices;
    devices.insert(devices.begin(), rank.device);
    for (const DeviceAssignment& device : devices) {
      if (const Unfit unfit = unfit_on(host, device); !unfit.got.empty())
        refuse(unfit.expected, unfit.got);
    }
  }
  return plan;
}

// Scores that were measured before, where the plan is made by them and none were given. Batches are
// divided by them only when every device has one.
Scores scores_for(const Inventory& inventory, const Request& request) {
  const bool by_speed =
      request.policy == "fastest" || request.gpus.has({SelectionItem::Kind::fastest});
  if (!request.scores.empty() || (!by_speed && request.global_batch == 0))
    return {};
  Scores scores = remembered_scores(inventory);
  const bool cpus = request.cpu_only || request.surplus == Surplus::cpu ||
                    std::any_of(inventory.hosts.begin(),
                                inventory.hosts.end(),
                                [](const Host& host) { return host.gpus.empty(); });
  return by_speed || cover_all(scores, inventory, cpus) ? scores : Scores();
}

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

}  // namespace

Inventory discover(const LaunchOptions& options) {
  if (!options.inventory.empty())
    return read_inventory(options.inventory);
  const Request& request = options.request;
  ProbeOptions probe;
  probe.cpu_slots = options.cpu_slots;
  probe.gpus = !request.cpu_only;
  probe.detail = GpuDetail::processes;
  const bool busy_matters =
      takes_any(request.gpus) || request.policy == "spread" || request.policy == "pack";
  if (busy_matters || !options.svg.empty())
    probe.detail = GpuDetail::full;
  probe.links = request.policy == "topology" || !options.svg.empty();
  probe.cpu_topology = request.numa_binding != NumaBinding::none || !options.svg.empty();
  return probe_this_machine(probe);
}

Plan place(const Inventory& inventory, const LaunchOptions& options) {
  return place_by(
      inventory, options, options.plan.empty() ? scores_for(inventory, options.request) : Scores());
}

std::vector<Lease> lease_host(const Plan& plan, int host_index, const LaunchOptions& options) {
  if (lease_wishes(plan, host_index).empty())
    return {};
  // Since this launcher began, its host may have waited for long.
  warn_of_other_users(
      probe_this_machine({.detail = GpuDetail::processes}).hosts.at(0), plan, host_index);
  if (!options.lease)
    return {};
  const LeaseFolder folder({.inherited = get_env(kLeaseVariable).value_or("")});
  return plan_with_leases(folder,
                          [&](const BusyGpus&) { return plan; },
                          {.job = options.run_id, .program = options.argv.at(0)},
                          {.host_index = host_index,
                           .wait = options.wait,
                           .on_wait = [](const std::string& line) { log(LogLevel::info, line); }})
      .leases;
}

LeasedPlan place_without(const BusyGpus& bad, int num_ranks, const LaunchOptions& options) {
  LaunchOptions here = options;
  here.request.nproc_per_node = num_ranks;
  here.wait = {};
  return place_and_lease(without_busy(discover(options), bad), here);
}

LeasedPlan place_and_lease(const Inventory& inventory, const LaunchOptions& options) {
  const Scores remembered =
      options.plan.empty() ? scores_for(inventory, options.request) : Scores();
  Plan plan = place_by(inventory, options, remembered);
  if (options.dry_run || lease_wishes(plan).empty())
    return {.plan = std::move(plan)};
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
  LeasedPlan leased =
      plan_with_leases(folder,
                       make_plan,
                       {.job = options.run_id, .program = options.argv.at(0)},
                       {.replan = options.plan.empty() && takes_any(options.request.gpus),
                        .wait = options.wait,
                        .on_wait = [](const std::string& line) { log(LogLevel::info, line); }});
  warn_of_other_users(now.hosts.at(0), leased.plan);
  return leased;
}

}  // namespace muster
