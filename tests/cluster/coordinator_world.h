// A coordinator for tests, with a clock of its own and no store, and hosts that join it, fail and
// are lost.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/cluster/coordinator.h"
#include "muster/placement/planner.h"

namespace muster {

inline HostFacts facts_of(const std::string& name, std::optional<int> node_rank = {}) {
  return {.id = "id-" + name,
          .node_rank = node_rank,
          .nproc = 1,
          .address = "10.0.0." + name,
          .master_port = 1000,
          .store = "tcp://10.0.0." + name + ":1",
          .host = {.name = name}};
}

inline RankExit failure_of(int rank, const std::string& host, int exit_code, int signal = 0) {
  return {
      .rank = rank, .host = host, .exit_code = exit_code, .signal = signal, .cause = "it failed"};
}

class World {
 public:
  explicit World(CoordinatorRules rules)
      : rules_(rules),
        coordinator_(
            std::move(rules),
            [this](const std::vector<HostFacts>& hosts) { return plan_for(hosts); },
            [this](const std::string& line) { said_.push_back(line); },
            now_) {}

  std::vector<Order> join(const std::string& name, std::optional<int> node_rank = {}) {
    return report(
        {.kind = Report::Kind::join, .from = "id-" + name, .facts = facts_of(name, node_rank)});
  }
  std::vector<Order> report(Report report) {
    if (report.facts && report.facts->max_hosts == 1) {
      report.facts->min_hosts = rules_.min_hosts;
      report.facts->max_hosts = rules_.max_hosts;
    }
    return coordinator_.on_report(report, now_);
  }
  std::vector<Order> sign_of_life(const std::string& name) {
    return coordinator_.on_sign_of_life("id-" + name, now_);
  }
  // A second agent with the name, the number and the address of one that has joined.
  std::vector<Order> join_again(const std::string& name, int node_rank, const std::string& id) {
    HostFacts again = facts_of(name, node_rank);
    again.id = id;
    return report({.kind = Report::Kind::join, .from = id, .facts = again});
  }
  std::vector<Order> fail(const std::string& name, int round, const RankExit& exit) {
    return report(
        {.kind = Report::Kind::failing, .from = "id-" + name, .round = round, .exits = {exit}});
  }
  std::vector<Order> end(const std::string& name, int round, std::vector<RankExit> exits = {}) {
    return report({.kind = Report::Kind::ended,
                   .from = "id-" + name,
                   .round = round,
                   .exits = std::move(exits)});
  }
  // Without the word to the lost host itself, in case it lives.
  std::vector<Order> lose(const std::string& name) {
    auto orders = report({.kind = Report::Kind::lost, .from = "id-" + name});
    std::erase_if(orders, [](const Order& order) { return order.kind == Order::Kind::refuse; });
    return orders;
  }
  std::vector<Order> after(std::chrono::milliseconds time) {
    now_ += time;
    return coordinator_.on_tick(now_);
  }
  Coordinator& coordinator() { return coordinator_; }
  const std::vector<std::string>& said() const { return said_; }
  std::string refusal;       // the planner's; empty: it plans
  std::optional<int> nproc;  // of every host in the planner's next plans; none: each host's own

 private:
  Plan plan_for(const std::vector<HostFacts>& hosts) const {
    if (!refusal.empty())
      throw Error(ErrorCode::invalid_argument, refusal);
    Inventory inventory{.source = "test"};
    Request request;
    for (const HostFacts& host : hosts) {
      inventory.hosts.push_back(host.host);
      request.hosts.push_back({.name = host.host.name, .nproc = nproc ? nproc : host.nproc});
    }
    return plan(inventory, request);
  }

  CoordinatorRules rules_;
  Clock::time_point now_ = Clock::now();
  std::vector<std::string> said_;
  Coordinator coordinator_;
};

inline CoordinatorRules fixed(int hosts, int max_restarts = 0) {
  return {
      .min_hosts = hosts, .max_hosts = hosts, .max_restarts = max_restarts, .run_folder = "job"};
}

inline CoordinatorRules between(int low, int high, int max_restarts = 0) {
  return {.min_hosts = low, .max_hosts = high, .max_restarts = max_restarts, .run_folder = "job"};
}

}  // namespace muster
