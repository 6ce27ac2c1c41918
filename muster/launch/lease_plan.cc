// A plan and its leases are found together: the planner plans, all of the plan's GPUs are leased at
// once, and GPUs that others hold are left out of the next plan. While there is none, Round runs
// again and again until the wait is over.
#include "muster/launch/lease_plan.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/pauses.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"

namespace muster {

namespace {

// The holder may have gone since.
std::string held_by(const LeaseRefusal& refusal) {
  if (refusal.holders.empty())
    return "held a moment ago";
  const auto holders =
      mapped(refusal.holders, [](const LeaseHolder& holder) { return describe(holder); });
  return cat("held by ", join(holders, "; "));
}

std::string busy_text(const BusyGpus& busy) {
  const auto line_of = [](const auto& gpu) {
    return cat(printable(gpu.first.value), " ", gpu.second);
  };
  return join(mapped(busy, line_of), ", ");
}

Error still_busy(const BusyGpus& busy,
                 const std::string& planner_error,
                 const LeasePlanOptions& options) {
  const std::string waited =
      options.wait ? cat(" after waiting ", format_duration(*options.wait)) : std::string();
  // Only the first line of the planner's error fits a sentence: below it stands a picture of the
  // place in --gpus.
  const auto planner = planner_error.substr(0, planner_error.find('\n'));
  const auto why = framed(" (without them: ", planner, ")");
  return unavailable(
      "lease: expected free GPUs, got ", busy_text(busy), waited, why, "; ", options.advice);
}

// Who holds what of the wishes, without a lease taken.
LeaseResult look(const LeaseFolder& folder, const LeaseWishes& wishes) {
  LeaseResult result;
  for (const LeaseWish& wish : wishes) {
    if (auto holders = folder.holders(wish.gpu); !holders.empty())
      result.busy.push_back({wish.gpu, std::move(holders)});
  }
  return result;
}

using Take = std::function<LeaseResult(const LeaseWishes&)>;

// One try for a plan with its leases. When there is none, busy() and planner_error() say what
// stands in the way.
class Round {
 public:
  Round(Take take, const PlanMaker& make_plan, int host_index)
      : take_(std::move(take)), make_plan_(make_plan), host_index_(host_index) {}

  std::optional<LeasedPlan> run(bool replan) {
    for (;;) {
      Plan plan;
      if (!try_plan(plan))
        return std::nullopt;
      LeaseResult result = take_(lease_wishes(plan, host_index_));
      if (result.busy.empty())
        return LeasedPlan{std::move(plan), std::move(result.leases)};
      bool more = false;  // a planner that plans what it was told to leave out would never end
      for (const LeaseRefusal& refusal : result.busy) {
        more |= busy_.insert_or_assign(refusal.gpu, held_by(refusal)).second;
      }
      if (!replan || !more)
        return std::nullopt;
    }
  }

  const BusyGpus& busy() const { return busy_; }
  const std::string& planner_error() const { return planner_error_; }

 private:
  // A planner that cannot do without the busy GPUs is no error yet: they may become free.
  bool try_plan(Plan& plan) {
    try {
      plan = make_plan_(busy_);
      return true;
    } catch (const Error& error) {
      if (busy_.empty())
        throw;
      planner_error_ = error.what();
      return false;
    }
  }

  const Take take_;
  const PlanMaker& make_plan_;
  int host_index_;
  BusyGpus busy_;
  std::string planner_error_;
};

}  // namespace

// The set has each GPU once, which several ranks may share.
LeaseWishes lease_wishes(const Plan& plan, int host_index) {
  LeaseWishes wishes;
  if (plan.simulated)
    return wishes;
  std::set<GpuUuid> gpus;
  for (const RankPlan& rank : ranks_of_host(plan, host_index)) {
    if (rank.device.is_gpu())
      gpus.insert(rank.device.uuid);
    for (const DeviceAssignment& more : rank.more_devices)
      gpus.insert(more.uuid);
  }
  for (const GpuUuid& gpu : gpus)
    wishes.push_back({gpu, kWholeGpu});
  return wishes;
}

Ints lease_fds(const Leases& leases) {
  return mapped(leases, &Lease::fd);
}

std::string lease_variable(const Leases& leases) {
  return join(lease_fds(leases), ",");
}

// A GPU that others hold counts as one that cannot be used, for the reason that is given.
Inventory without_busy(Inventory inventory, const BusyGpus& busy) {
  for (Host& host : inventory.hosts) {
    for (Gpu& gpu : host.gpus) {
      const std::string* const found = value_at(busy, gpu.uuid);
      if (found != nullptr && gpu.health == kHealthy)
        gpu.health = *found;
    }
  }
  return inventory;
}

Plan plan_around_leases(const LeaseFolder& folder,
                        const PlanMaker& make_plan,
                        const LeasePlanOptions& options) {
  Round round(
      [&](const auto& wishes) { return look(folder, wishes); }, make_plan, options.host_index);
  if (auto found = round.run(options.replan))
    return std::move(found->plan);
  if (options.replan)
    throw still_busy(round.busy(), round.planner_error(), options);
  Plan plan = make_plan({});
  plan.notes.push_back(cat(busy_text(round.busy()), ": `muster run` waits for that with --wait"));
  return plan;
}

LeasedPlan plan_with_leases(const LeaseFolder& folder,
                            const PlanMaker& make_plan,
                            const LeaseNote& note,
                            const LeasePlanOptions& options) {
  // The clock can hold no later deadline than some centuries from now.
  constexpr milliseconds kLongest = std::chrono::hours(24 * 365 * 10);
  const Deadline deadline(std::min(options.wait.value_or(milliseconds(0)), kLongest));
  for (bool told = false;; told = true) {
    Round round([&](const auto& wishes) { return folder.try_take_all(wishes, note); },
                make_plan,
                options.host_index);
    if (auto leased = round.run(options.replan))
      return std::move(*leased);
    if (!options.wait || deadline.passed())
      throw still_busy(round.busy(), round.planner_error(), options);
    if (!told)
      options.on_wait(cat("waiting for GPUs: ", busy_text(round.busy())));
    sleep_within(deadline, options.poll);
  }
}

}  // namespace muster
