// The coordinator's decisions, with a clock of its own and no store.
#include "muster/cluster/coordinator.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/planner.h"

namespace muster {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = Order::Kind;

HostFacts facts_of(const std::string& name, std::optional<int> node_rank = {}) {
  return {.id = "id-" + name,
          .node_rank = node_rank,
          .nproc = 1,
          .address = "10.0.0." + name,
          .master_port = 1000,
          .store = "tcp://10.0.0." + name + ":1",
          .host = {.name = name}};
}

WorkerExit failure_of(int rank, const std::string& host, int exit_code, int signal = 0) {
  return {.rank = rank, .host = host, .exit_code = exit_code, .signal = signal, .cause = "it failed"};
}

class World {
 public:
  explicit World(CoordinatorRules rules)
      : rules_(rules),
        coordinator_(
            std::move(rules), [this](const std::vector<HostFacts>& hosts) { return plan_for(hosts); },
            [this](const std::string& line) { said_.push_back(line); }, now_) {}

  std::vector<Order> join(const std::string& name, std::optional<int> node_rank = {}) {
    return report({.kind = Report::Kind::join, .from = "id-" + name, .facts = facts_of(name, node_rank)});
  }
  std::vector<Order> report(Report report) {
    if (report.facts && report.facts->max_hosts == 1) {
      report.facts->min_hosts = rules_.min_hosts;
      report.facts->max_hosts = rules_.max_hosts;
    }
    return coordinator_.on_report(report, now_);
  }
  std::vector<Order> fail(const std::string& name, int round, const WorkerExit& exit) {
    return report({.kind = Report::Kind::failing, .from = "id-" + name, .round = round, .exits = {exit}});
  }
  std::vector<Order> end(const std::string& name, int round, std::vector<WorkerExit> exits = {}) {
    return report(
        {.kind = Report::Kind::ended, .from = "id-" + name, .round = round, .exits = std::move(exits)});
  }
  // Without the word to the lost host itself, in case it lives.
  std::vector<Order> lose(const std::string& name) {
    auto orders = report({.kind = Report::Kind::lost, .from = "id-" + name});
    std::erase_if(orders, [](const Order& order) { return order.kind == Kind::refuse; });
    return orders;
  }
  std::vector<Order> after(std::chrono::milliseconds time) {
    now_ += time;
    return coordinator_.on_tick(now_);
  }
  Coordinator& coordinator() { return coordinator_; }
  const std::vector<std::string>& said() const { return said_; }
  std::string refusal;  // the planner's; empty: it plans

 private:
  Plan plan_for(const std::vector<HostFacts>& hosts) const {
    if (!refusal.empty()) throw Error(ErrorCode::invalid_argument, refusal);
    Inventory inventory{.source = "test"};
    Request request;
    for (const HostFacts& host : hosts) {
      inventory.hosts.push_back(host.host);
      request.hosts.push_back({.name = host.host.name, .nproc = host.nproc});
    }
    return plan(inventory, request);
  }

  CoordinatorRules rules_;
  Clock::time_point now_ = Clock::now();
  std::vector<std::string> said_;
  Coordinator coordinator_;
};

CoordinatorRules fixed(int hosts, int max_restarts = 0) {
  return {.min_hosts = hosts, .max_hosts = hosts, .max_restarts = max_restarts, .run_folder = "job"};
}

CoordinatorRules between(int low, int high, int max_restarts = 0) {
  return {.min_hosts = low, .max_hosts = high, .max_restarts = max_restarts, .run_folder = "job"};
}

TEST(Coordinator, StartsWhenAllAreThereInTheOrderOfTheirNumbers) {
  World world(fixed(3));
  EXPECT_THAT(world.join("7", 2), IsEmpty());
  EXPECT_THAT(world.join("9", 0), IsEmpty());
  const auto orders = world.join("8", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::start);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-9", "id-8", "id-7"));
  EXPECT_EQ(orders[0].master_addr, "10.0.0.9") << "where rank 0 is";
  EXPECT_EQ(orders[0].store, "tcp://10.0.0.9:1");
  EXPECT_EQ(orders[0].plan.ranks.size(), 3U);
  EXPECT_EQ(orders[0].run_folder, "job");
}

TEST(Coordinator, OrdersHostsByNameWhateverCameFirst) {
  for (const bool backwards : {false, true}) {
    World world(fixed(2));
    world.join(backwards ? "b" : "a");
    EXPECT_THAT(world.join(backwards ? "a" : "b")[0].hosts, ElementsAre("id-a", "id-b"));
  }
}

TEST(Coordinator, EndsWellWhenEveryHostHas) {
  World world(fixed(2));
  world.join("a");
  world.join("b");
  EXPECT_THAT(world.end("a", 1), IsEmpty()) << "one that is done early is waited with";
  EXPECT_THAT(world.lose("a"), IsEmpty());
  const auto orders = world.end("b", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::finish);
  EXPECT_EQ(orders[0].exit_code, 0);
  EXPECT_TRUE(world.coordinator().finished());
}

TEST(Coordinator, AFailureStopsAllAndIsTheExitCode) {
  World world(fixed(2));
  world.join("a");
  world.join("b");
  const auto stop = world.fail("b", 1, failure_of(1, "b", 3));
  ASSERT_THAT(stop, SizeIs(1));
  EXPECT_EQ(stop[0].kind, Kind::stop);
  EXPECT_EQ(stop[0].round, 1);
  EXPECT_THAT(stop[0].reason, HasSubstr("rank 1 on host b failed"));
  WorkerExit whole = failure_of(1, "b", 3);
  whole.last_lines = {"why"};
  EXPECT_THAT(world.end("b", 1, {whole}), IsEmpty());
  WorkerExit ended = failure_of(0, "a", 0, SIGTERM);
  ended.sent_signal = SIGTERM;
  const auto orders = world.end("a", 1, {ended});
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::finish);
  EXPECT_EQ(orders[0].exit_code, 3);
  ASSERT_THAT(orders[0].exits, SizeIs(2));
  EXPECT_THAT(orders[0].exits[0].last_lines, ElementsAre("why")) << "what was told in a hurry is completed";
}

TEST(Coordinator, TheRankThatWasKilledIsTheCauseWhoeverReportedFirst) {
  World world(fixed(2));
  world.join("a");
  world.join("b");
  world.fail("a", 1, failure_of(0, "a", 1));
  world.fail("b", 1, failure_of(1, "b", 0, SIGKILL));
  world.end("a", 1, {failure_of(0, "a", 1)});
  const auto orders = world.end("b", 1, {failure_of(1, "b", 0, SIGKILL)});
  EXPECT_EQ(orders.at(0).exit_code, 128 + SIGKILL);
  EXPECT_EQ(orders[0].exits.at(0).rank, 1);
}

TEST(Coordinator, RestartsAllWithinOneBudget) {
  World world(fixed(2, 2));
  world.join("a");
  world.join("b");
  for (int round = 1; round <= 2; ++round) {
    world.fail("a", round, failure_of(0, "a", 1));
    world.end("a", round, {failure_of(0, "a", 1)});
    auto orders = world.end("b", round);
    if (orders.empty()) orders = world.after(seconds(2));
    ASSERT_THAT(orders, SizeIs(1)) << round;
    EXPECT_EQ(orders[0].kind, Kind::start);
    EXPECT_EQ(orders[0].round, round + 1);
    EXPECT_EQ(orders[0].restart_count, round);
  }
  world.fail("a", 3, failure_of(0, "a", 1));
  world.end("a", 3, {failure_of(0, "a", 1)});
  EXPECT_EQ(world.end("b", 3).at(0).kind, Kind::finish);
}

TEST(Coordinator, ReportsOfAnOlderRoundAreOld) {
  World world(fixed(1, 1));
  world.join("a");
  world.fail("a", 1, failure_of(0, "a", 1));
  ASSERT_EQ(world.end("a", 1, {failure_of(0, "a", 1)}).at(0).round, 2);
  EXPECT_THAT(world.fail("a", 1, failure_of(0, "a", 1)), IsEmpty());
  EXPECT_THAT(world.end("a", 1), IsEmpty());
  EXPECT_EQ(world.end("a", 2).at(0).exit_code, 0);
}

TEST(Coordinator, ALostHostEndsAFixedJob) {
  World world(fixed(2));
  world.join("a");
  world.join("b");
  EXPECT_EQ(world.lose("b").at(0).kind, Kind::stop);
  WorkerExit peer = failure_of(0, "a", 1);  // it noticed, of course
  const auto orders = world.end("a", 1, {peer});
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].exit_code, 1);
  EXPECT_THAT(orders[0].reason, HasSubstr("host b (10.0.0.b) is gone"));
}

TEST(Coordinator, AnElasticJobGoesOnWithTheHostsThatAreLeftInTheirOrder) {
  World world(between(2, 3));
  world.join("c");
  world.join("b");
  ASSERT_THAT(world.join("a"), SizeIs(1));
  world.lose("a");
  world.end("b", 1);
  const auto orders = world.end("c", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::start);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-b", "id-c"));
  EXPECT_EQ(orders[0].restart_count, 0) << "a change of hosts is no failure";
}

TEST(Coordinator, ANewHostTakesPartAtOnceBehindThoseThatWereThere) {
  World world(between(1, 3));
  world.join("m");
  ASSERT_THAT(world.after(seconds(31)), SizeIs(1)) << "the last call is over";
  const auto stop = world.join("a");
  ASSERT_THAT(stop, SizeIs(1));
  EXPECT_EQ(stop[0].kind, Kind::stop);
  const auto orders = world.end("m", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-m", "id-a"));
}

TEST(Coordinator, BelowTheMinimumItWaitsAndThenStartsAllTogether) {
  World world(between(2, 3));
  world.join("a");
  world.join("b");
  world.after(seconds(31));
  world.lose("b");
  EXPECT_THAT(world.end("a", 1), IsEmpty());
  EXPECT_THAT(world.after(seconds(60)), IsEmpty());
  EXPECT_THAT(world.join("c")[0].hosts, ElementsAre("id-a", "id-c"));
}

TEST(Coordinator, TheMissingOnesAreListed) {
  World world(fixed(3));
  world.join("a", 0);
  world.join("b", 2);
  const auto orders = world.after(std::chrono::minutes(11));
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].exit_code, 1);
  EXPECT_THAT(orders[0].reason, HasSubstr("missing: node rank 1"));
  EXPECT_THAT(orders[0].reason, HasSubstr("got 2"));
}

TEST(Coordinator, TheSecondHostWithANumberIsRefused) {
  World world(fixed(3));
  world.join("a", 1);
  const auto orders = world.join("b", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::refuse);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-b"));
  EXPECT_THAT(orders[0].reason, HasSubstr("beside a"));
}

TEST(Coordinator, AHostThatWasToldAnotherSizeIsRefusedWithBoth) {
  World world(fixed(2));
  HostFacts facts = facts_of("a");
  facts.min_hosts = facts.max_hosts = 3;
  const auto orders = world.report({.kind = Report::Kind::join, .from = "id-a", .facts = facts});
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].reason, testing::AllOf(HasSubstr("got 3 on host a"), HasSubstr("and 2 on")));
}

TEST(Coordinator, AHostThatWasGivenUpIsToldInCaseItLives) {
  World world(fixed(2));
  world.join("a");
  const auto orders = world.report({.kind = Report::Kind::lost, .from = "id-a"});
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::refuse);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a"));
}

TEST(Coordinator, AHostThatWasStartedAgainTakesItsPlace) {
  World world(fixed(2));
  world.join("a", 0);
  HostFacts again = facts_of("a", 0);
  again.id = "id-a2";
  world.report({.kind = Report::Kind::join, .from = "id-a2", .facts = again});
  const auto orders = world.join("b", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a2", "id-b"));
}

TEST(Coordinator, AnElasticJobDoesWithoutAHostThatCannotStart) {
  World world(between(1, 2));
  world.join("a");
  world.join("b");
  world.report(
      {.kind = Report::Kind::ended, .from = "id-b", .round = 1, .error = "GPU 0 is leased", .exit_code = 1});
  const auto orders = world.end("a", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::start);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a"));
}

TEST(Coordinator, AHostThatKeepsFailingIsSetAside) {
  CoordinatorRules rules = between(1, 2, 10);
  rules.max_host_failures = 2;
  World world(rules);
  world.join("a");
  world.join("b");
  for (int round = 1; round <= 2; ++round) {
    world.fail("b", round, failure_of(1, "b", 1));
    world.end("b", round, {failure_of(1, "b", 1)});
    auto orders = world.end("a", round);
    if (orders.empty() || orders.back().kind != Kind::start) {
      for (const Order& order : world.after(seconds(2))) orders.push_back(order);
    }
    ASSERT_FALSE(orders.empty());
    EXPECT_EQ(orders.back().hosts.size(), round == 1 ? 2U : 1U);
  }
  EXPECT_THAT(world.said(), testing::Contains(HasSubstr("host b is set aside")));
  const auto again = world.join("b");
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].kind, Kind::refuse);
  EXPECT_THAT(again[0].reason, HasSubstr("set aside"));
}

TEST(Coordinator, AHostThatLeavesEndsAFixedJobAndShrinksAnElasticOne) {
  for (const bool elastic : {false, true}) {
    World world(elastic ? between(1, 2) : fixed(2));
    world.join("a");
    world.join("b");
    const auto stop =
        world.report({.kind = Report::Kind::ended, .from = "id-b", .round = 1, .stopped_by = SIGTERM});
    ASSERT_THAT(stop, SizeIs(1));
    const auto orders = world.end("a", 1);
    ASSERT_THAT(orders, SizeIs(1));
    EXPECT_EQ(orders[0].kind, elastic ? Kind::start : Kind::finish);
    if (!elastic) {
      EXPECT_EQ(orders[0].exit_code, 128 + SIGTERM);
    }
  }
}

TEST(Coordinator, AHostThatLeftMayBeGoneBeforeTheOthersHaveStopped) {
  World world(between(1, 2));
  world.join("a");
  world.join("b");
  world.report({.kind = Report::Kind::ended, .from = "id-b", .round = 1, .stopped_by = SIGTERM});
  EXPECT_THAT(world.lose("b"), IsEmpty());
  const auto orders = world.end("a", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::start);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a"));
}

TEST(Coordinator, AHostThatCannotStartEndsTheJobWithItsReason) {
  World world(fixed(2));
  world.join("a");
  world.join("b");
  world.report(
      {.kind = Report::Kind::ended, .from = "id-b", .round = 1, .error = "GPU 0 is leased", .exit_code = 1});
  const auto orders = world.end("a", 1);
  EXPECT_THAT(orders.at(0).reason, testing::AllOf(HasSubstr("host b"), HasSubstr("GPU 0 is leased")));
}

TEST(Coordinator, ARequestThatCannotBePlannedEndsTheJob) {
  World world(fixed(1));
  world.refusal = "no such GPU";
  const auto orders = world.join("a");
  EXPECT_EQ(orders.at(0).kind, Kind::finish);
  EXPECT_EQ(orders[0].exit_code, 2);
  EXPECT_EQ(orders[0].reason, "no such GPU");
}

TEST(Coordinator, TheTimeLimitEndsARoundAndAGathering) {
  CoordinatorRules rules = fixed(1);
  rules.time_limit = seconds(5);
  World world(rules);
  world.join("a");
  EXPECT_EQ(world.after(seconds(5)).at(0).kind, Kind::stop);
  EXPECT_EQ(world.end("a", 1).at(0).exit_code, 124);
  rules.min_hosts = rules.max_hosts = 2;
  World waiting(rules);
  waiting.join("a");
  EXPECT_EQ(waiting.after(seconds(5)).at(0).exit_code, 124);
}

TEST(Coordinator, AHostThatDoesNotEndItsRanksIsNotWaitedForForEver) {
  World world(fixed(2));
  world.join("a");
  world.join("b");
  world.fail("a", 1, failure_of(0, "a", 1));
  world.end("a", 1, {failure_of(0, "a", 1)});
  EXPECT_THAT(world.after(seconds(59)), IsEmpty());
  const auto orders = world.after(seconds(2));
  ASSERT_FALSE(orders.empty());
  EXPECT_EQ(orders.back().kind, Kind::finish);
}

TEST(Coordinator, TwoAgentsOnOneMachineGetNamesOfTheirOwn) {
  World world(fixed(2));
  world.report({.kind = Report::Kind::join, .from = "1", .facts = facts_of("box", 0)});
  HostFacts second = facts_of("box", 1);
  second.id = "2";
  const auto orders = world.report({.kind = Report::Kind::join, .from = "2", .facts = second});
  EXPECT_EQ(orders.at(0).plan.ranks.at(1).host, "box.2");
}

// What one coordinator did, another that takes over knows.
TEST(Coordinator, GoesOnWhereAnotherWasLost) {
  World first(between(1, 3));
  std::vector<Order> log;
  const auto keep = [&](const std::vector<Order>& orders) {
    log.insert(log.end(), orders.begin(), orders.end());
  };
  keep(first.join("a"));
  keep(first.join("b"));
  keep(first.join("c"));
  World second(between(1, 3));
  for (const char* name : {"a", "b", "c"})
    second.coordinator().replay(
        Report{.kind = Report::Kind::join, .from = cat("id-", name), .facts = facts_of(name)});
  for (const Order& order : log) second.coordinator().replay(order);
  EXPECT_EQ(second.lose("a").at(0).kind, Kind::stop);
  second.end("b", 1);
  const auto orders = second.end("c", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-b", "id-c"));
  EXPECT_EQ(orders[0].round, 2);
}

TEST(Coordinator, OneThatTakesOverKnowsWhoIsSetAsideAndHowOldTheJobIs) {
  CoordinatorRules rules = between(1, 3);
  rules.time_limit = seconds(100);
  World second(rules);
  Order started{.kind = Kind::start, .round = 4, .hosts = {"id-a"}, .restart_count = 3};
  started.plan = plan(Inventory{.source = "test", .hosts = {{.name = "a"}}}, {.nproc_per_node = 1});
  started.failures = {{"b", 3}};
  started.set_aside = {"b"};
  for (const char* name : {"a", "b"}) {
    HostFacts facts = facts_of(name);
    facts.min_hosts = 1;
    facts.max_hosts = 3;
    second.coordinator().replay(Report{.kind = Report::Kind::join, .from = cat("id-", name), .facts = facts});
  }
  second.coordinator().replay(started);
  const auto orders = second.coordinator().resume(Clock::time_point(), seconds(40));
  ASSERT_THAT(orders, SizeIs(1)) << "b had joined, and nobody had answered";
  EXPECT_EQ(orders[0].kind, Kind::refuse);
  EXPECT_THAT(orders[0].reason, HasSubstr("set aside"));
  EXPECT_THAT(second.coordinator().on_tick(Clock::time_point() + seconds(59)), IsEmpty());
  const auto over = second.coordinator().on_tick(Clock::time_point() + seconds(61));
  ASSERT_FALSE(over.empty());
  EXPECT_EQ(over[0].kind, Kind::stop);
  EXPECT_THAT(over[0].reason, HasSubstr("time limit"));
}

}  // namespace
}  // namespace muster
