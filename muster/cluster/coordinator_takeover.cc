// A coordinator that takes over reads what was reported and ordered before it. Orders are the state
// that the coordinator before was in. Joins count whenever they were reported, and what happened to
// the hosts of the last round is treated as if it was reported now.
#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <string>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/cluster/coordinator.h"

namespace muster {

// Who has joined does not depend on what was decided since. What happened to hosts of the last
// round does: it counts only after the orders, as if it was reported now.
Orders Coordinator::take_over(const Reports& reports,
                              const Orders& orders,
                              TimePoint now,
                              milliseconds age) {
  now_ = now;
  began_ = now - age;
  const auto last_start =
      std::ranges::find(std::views::reverse(orders), Order::Kind::start, &Order::kind);
  StringSet in_round;
  if (last_start != std::views::reverse(orders).end())
    in_round.insert(last_start->hosts.begin(), last_start->hosts.end());
  // A signal that has been ordered has reached the ranks: as many reports of a host tell nothing
  // new.
  std::map<int, int> ordered;
  for (const Order& order : orders)
    ++ordered[order.signal];
  std::map<std::pair<std::string, int>, int> told;
  const auto is_new = [&](const Report& report) {
    return ++told[{report.from, report.signal}] > find_or(ordered, report.signal, 0);
  };
  Reports later;
  for (const Report& report : reports) {
    const bool is_gone = is_one_of(report.kind, Report::Kind::leave, Report::Kind::lost);
    if (report.kind == Report::Kind::join) {
      members_[report.from] = {.facts = *report.facts};
    } else if (is_gone && !in_round.contains(report.from)) {
      members_.erase(report.from);
    } else if (report.kind != Report::Kind::signal || is_new(report)) {
      later.push_back(report);
    }
  }
  for (const Order& order : orders) {
    replay(order);
    if (order.kind != Order::Kind::refuse || order.hosts.empty())
      continue;
    // A host of the round that was refused was given up: that is known by this order alone where
    // it was silent.
    const std::string& id = order.hosts[0];
    if (in_round.contains(id)) {
      later.push_back({.kind = Report::Kind::lost, .from = id});
    } else {
      members_.erase(id);
    }
  }
  join_again();
  Orders given = std::exchange(orders_, {});
  for (const Report& report : later)
    std::ranges::move(on_report(report, now), std::back_inserter(given));
  return given;
}

// An order of the coordinator before is the state that it was in.
void Coordinator::replay(const Order& order) {
  if (order.kind == Order::Kind::finish)
    phase_ = Phase::finished;
  if (order.kind == Order::Kind::stop) {
    phase_ = Phase::stopping;
    stop_deadline_ = now_ + rules_.stop_timeout;
  }
  if (order.kind != Order::Kind::start)
    return;
  restarts_ = order.restart_count;
  failures_of_ = order.failures;
  const auto names = std::views::keys(failures_of_);
  failed_ = {names.begin(), names.end()};
  set_aside_ = order.set_aside;
  rules_.launch = order.launch;
  enter_round(order);
}

// Hosts that no order speaks of have joined while nobody coordinated: they join again.
void Coordinator::join_again() {
  Reports joins;
  for (const auto& [id, member] : members_) {
    if (member.seniority == 0)
      joins.push_back({.kind = Report::Kind::join, .from = id, .facts = member.facts});
  }
  for (const Report& join : joins)
    members_.erase(join.from);
  for (const auto& [id, member] : members_) {
    if (member.facts.node_rank)
      holders_[*member.facts.node_rank] = id;
  }
  if (phase_ == Phase::finished)
    return;
  for (const Report& join : joins)
    on_join(join);
}

}  // namespace muster
