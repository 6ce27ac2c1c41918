// Rounds in place (`--on-failure replace`): ranks that failed get other processes, or hosts come
// and go, and all processes that run go on in the next round as ranks of its plan. What could be in
// the way is asked in three steps: of the failures or the hosts, of the plan for those that are
// left, and of what that plan would change for processes that run. Any obstacle is said, and the
// round is stopped as without --on-failure replace.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/cluster/coordinator.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/replacement.h"

namespace muster {

namespace {

// A process keeps its device, and its place among those of its host.
bool may_go_on_as(const RankPlan& was, const RankPlan& is) {
  return was.local_rank == is.local_rank && was.device == is.device &&
         was.more_devices == is.more_devices;
}

}  // namespace

// Ranks that have ended cannot come to a new round.
std::string Coordinator::obstacle_to_replacing_ranks(const Report& report) const {
  if (some_have_ended_)
    return "the ranks of another host have ended already";
  if (std::string obstacle = obstacle_of_exits(report.exits); !obstacle.empty())
    return obstacle;
  const std::string& host = report.exits.front().host;
  const int failures = find_or(failures_of_, host) + 1;
  if (can_spare_a_host() && failures >= rules_.max_host_failures)
    return cat("host ", host, " is to be set aside (--max-host-failures)");
  return "";
}

// The report has ranks of one host. A report of another host's ranks that failed with them comes
// when their round is over, and changes nothing: that host starts them with the next order, as it
// does all that do not run.
bool Coordinator::replace_in_place(const Report& report) {
  if (!rules_.replaces || report.exits.empty() || restarts_ >= rules_.max_restarts)
    return false;
  if (some_have_stopped(report.exits))
    return false;
  Order order;
  std::string obstacle = obstacle_to_replacing_ranks(report);
  if (obstacle.empty()) {
    const auto is_there = [&](const std::string& id) {
      return members_.contains(id);
    };
    obstacle = plan_in_place(filtered(hosts_, is_there), order);
  }
  if (!obstacle.empty()) {
    say_(cat("not replaced in place: ", obstacle));
    return false;
  }
  add_failure(report.exits.front().host);
  ++restarts_;
  order.pause =
      std::min<milliseconds>(back_off_.pause_after(now_ - round_began_), rules_.longest_pause);
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

std::string Coordinator::obstacle_in_plan(const Order& next) const {
  std::map<std::string, int> old_indexes;
  for (const auto& id : hosts_)
    old_indexes.emplace(id, old_indexes.size());
  for (int index = 0; const std::string& id : next.hosts) {
    const auto is = ranks_of_host(next.plan, index++);
    const int* const before = value_at(old_indexes, id);
    if (before == nullptr)
      continue;
    const auto was = ranks_of_host(plan_, *before);
    if (!std::ranges::equal(was, is, may_go_on_as))
      return cat("the plan for these hosts gives ", name_of(id), " other ranks or devices");
  }
  return "";
}

// Makes the order for a round of these hosts. Returns what keeps processes from going on in it.
std::string Coordinator::plan_in_place(const Strings& ids, Order& order) const {
  try {
    order = round_of(ids);
    return obstacle_in_plan(order);
  } catch (const Error& error) {
    return error.message();
  }
}

bool Coordinator::may_regroup() const {
  return rules_.replaces && phase_ == Phase::running;
}

// `what` has happened to a host, in words.
bool Coordinator::regroup_in_place(const std::string& what) {
  if (!may_regroup())
    return false;
  std::string obstacle = obstacle_to_regrouping();
  Order order;
  if (obstacle.empty())
    obstacle = plan_in_place(candidates(), order);
  if (!obstacle.empty()) {
    say_(cat(what, ", and the others do not go on in place: ", obstacle));
    return false;
  }
  const size_t ranks = order.plan.ranks.size();
  say_(cat(what,
           "; the others keep their processes: ",
           plural(ranks, "rank"),
           word_for(ranks, " goes", " go"),
           " on in place of ",
           plan_.ranks.size()));
  order.reason = what;
  go_on_in_place(std::move(order));
  return true;
}

// A host leaves whose agent was stopped, and whose ranks have ended of that. Where these ended as
// should_stop() asks, all others have done so too, and none is left to go on.
bool Coordinator::leave_in_place(const Report& report) {
  const bool leaves = report.stopped_by != 0 && rules_.elastic() && report.error.empty();
  if (!leaves || !may_regroup() || some_have_stopped(report.exits))
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

// What is counted may have changed since the order was made.
void Coordinator::go_on_in_place(Order order) {
  order.in_place = true;
  order.restart_count = restarts_;
  order.failures = failures_of_;
  order.set_aside = set_aside_;
  enter_round(order);
  orders_.push_back(std::move(order));
}

}  // namespace muster
