// Rounds in place (`--on-failure replace`): ranks that failed get other processes, or hosts come
// and go, and all processes that run go on in the next round as ranks of its plan.
#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/cluster/coordinator.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/replacement.h"
#include "muster/launch/restart.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kQuickInPlace{60};

}  // namespace

std::string Coordinator::obstacle_to_replacing_ranks(const Report& report) const {
  for (const WorkerExit& exit : report.exits)
    if (std::string obstacle = obstacle_to_replacing(exit); !obstacle.empty())
      return obstacle;
  const std::string& host = report.exits.front().host;
  const auto known = failures_of_.find(host);
  const int failures = known == failures_of_.end() ? 1 : known->second + 1;
  if (can_spare_a_host() && failures >= rules_.max_host_failures)
    return cat("host ", host, " is to be set aside (--max-host-failures)");
  return "";
}

// Ranks of one host. Those of another that failed with them are of a round that is over when their
// report comes: their host starts them with the next order, as it does all that do not run.
bool Coordinator::replace_in_place(const Report& report) {
  if (!rules_.replaces || report.exits.empty() || restarts_ >= rules_.max_restarts)
    return false;
  if (some_have_stopped(report.exits))
    return false;
  if (const std::string obstacle = obstacle_to_replacing_ranks(report); !obstacle.empty()) {
    say_(cat("not replaced in place: ", obstacle));
    return false;
  }
  ++failures_of_[report.exits.front().host];
  ++restarts_;
  quick_failures_ = now_ - round_began_ < kQuickInPlace ? quick_failures_ + 1 : 0;
  Order order = round_of(hosts_);
  order.pause = back_off(quick_failures_);
  order.exits = report.exits;
  order.reason = failures_in_words(report.exits);
  say_(describe_replacing(report.exits, order.pause, restarts_, rules_.max_restarts));
  go_on_in_place(std::move(order));
  return true;
}

std::string Coordinator::obstacle_to_regrouping() const {
  if (std::ssize(members_) < rules_.min_hosts)
    return cat("expected ", rules_.min_hosts, " hosts at least (--nnodes), got ", members_.size());
  bool some_run = false;
  for (const auto& [id, member] : members_) {
    if (!member.in_round || !member.has_ranks)
      continue;
    if (member.ended)
      return cat("the ranks of host ", name_of(id), " have ended already");
    some_run = true;
  }
  return some_run ? "" : "no rank is left to go on";
}

// A process keeps its device, and its place among those of its host.
std::string Coordinator::obstacle_in_plan(const Order& next) const {
  for (size_t i = 0; i < next.hosts.size(); ++i) {
    const auto before = std::find(hosts_.begin(), hosts_.end(), next.hosts[i]);
    if (before == hosts_.end())
      continue;
    const RankRange old_ranks = ranks_on_host(plan_, static_cast<int>(before - hosts_.begin()));
    const RankRange new_ranks = ranks_on_host(next.plan, static_cast<int>(i));
    bool same = old_ranks.count == new_ranks.count;
    for (size_t r = 0; same && r < old_ranks.count; ++r) {
      const RankPlan& was = plan_.ranks.at(old_ranks.first + r);
      const RankPlan& is = next.plan.ranks.at(new_ranks.first + r);
      same = was.local_rank == is.local_rank && was.device == is.device &&
             was.more_devices == is.more_devices;
    }
    if (!same)
      return cat(
          "the plan for these hosts gives ", name_of(next.hosts[i]), " other ranks or devices");
  }
  return "";
}

bool Coordinator::regroup_in_place(const std::string& what) {
  if (!rules_.replaces || phase_ != Phase::running)
    return false;
  std::string obstacle = obstacle_to_regrouping();
  Order order;
  try {
    if (obstacle.empty()) {
      order = round_of(candidates());
      obstacle = obstacle_in_plan(order);
    }
  } catch (const Error& error) {
    obstacle = error.message();
  }
  if (!obstacle.empty()) {
    say_(cat(what, ", and the others do not go on in place: ", obstacle));
    return false;
  }
  const size_t ranks = order.plan.ranks.size();
  say_(cat(what,
           "; the others keep their processes: ",
           plural(static_cast<int64_t>(ranks), "rank"),
           ranks == 1 ? " goes" : " go",
           " on in place of ",
           plan_.ranks.size()));
  order.reason = what;
  go_on_in_place(std::move(order));
  return true;
}

// A host whose agent was stopped, and whose ranks have ended of that. Where these ended as
// should_stop() asks, all others have done so too.
bool Coordinator::leave_in_place(const Report& report) {
  const bool leaves = report.stopped_by != 0 && rules_.elastic() && report.error.empty();
  if (!leaves || !rules_.replaces || phase_ != Phase::running || some_have_stopped(report.exits))
    return false;
  const std::string name = name_of(report.from);
  const auto found = members_.find(report.from);
  const Member member = found->second;
  members_.erase(found);
  if (regroup_in_place(cat("host ", name, " leaves")))
    return true;
  members_[report.from] = member;
  return false;
}

void Coordinator::go_on_in_place(Order order) {
  order.in_place = true;
  enter_round(order);
  orders_.push_back(std::move(order));
}

}  // namespace muster
