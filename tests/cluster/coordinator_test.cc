// The coordinator's decisions about rounds: when ranks start and stop, and how the job ends.
#include "muster/cluster/coordinator.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "muster/base/strings.h"
#include "tests/cluster/coordinator_world.h"

namespace muster {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = Order::Kind;

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

TEST(Coordinator, ASignalIsForTheRanksThatRun) {
  World world(fixed(2));
  const Report signal{.kind = Report::Kind::signal, .from = "launcher", .signal = SIGUSR1};
  world.join("a");
  EXPECT_THAT(world.report(signal), IsEmpty());
  const auto began = world.join("b");
  ASSERT_THAT(began, SizeIs(2)) << "the signal came before the round";
  EXPECT_EQ(began[0].kind, Kind::start);
  const auto orders = world.report(signal);
  ASSERT_THAT(orders, SizeIs(1));
  for (const Order& order : {began[1], orders[0]}) {
    EXPECT_EQ(order.kind, Kind::signal);
    EXPECT_EQ(order.round, 1);
    EXPECT_EQ(order_from_text(to_text(order)).signal, SIGUSR1);
  }
}

// As Slurm's scancel tells a step.
TEST(Coordinator, ASignalThatEveryHostTellsIsOne) {
  World world(fixed(2));
  world.join("a");
  world.join("b");
  const auto tell = [&](const std::string& host) {
    return world.report({.kind = Report::Kind::signal, .from = "id-" + host, .signal = SIGUSR1});
  };
  EXPECT_THAT(tell("a"), SizeIs(1));
  EXPECT_THAT(tell("b"), IsEmpty());
  EXPECT_THAT(world.said().back(), HasSubstr("SIGUSR1 to host b (10.0.0.b) counts as the one to"));
  EXPECT_THAT(tell("b"), SizeIs(1)) << "another one";
  world.after(std::chrono::minutes(1));
  EXPECT_THAT(tell("a"), SizeIs(1));
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
  RankExit whole = failure_of(1, "b", 3);
  whole.last_lines = {"why"};
  EXPECT_THAT(world.end("b", 1, {whole}), IsEmpty());
  RankExit ended = failure_of(0, "a", 0, SIGTERM);
  ended.sent_signal = SIGTERM;
  const auto orders = world.end("a", 1, {ended});
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::finish);
  EXPECT_EQ(orders[0].exit_code, 3);
  ASSERT_THAT(orders[0].exits, SizeIs(2));
  EXPECT_THAT(orders[0].exits[0].last_lines, ElementsAre("why"))
      << "what was told in a hurry is completed";
}

TEST(Coordinator, TheRankThatWasKilledIsTheCauseWhoeverReportedFirst) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGABRT, SIGPIPE, 0}) {
    World world(fixed(2));
    world.join("a");
    world.join("b");
    const RankExit cause = failure_of(1, "b", signal == 0 ? 3 : 0, signal);
    world.fail("a", 1, failure_of(0, "a", 1));
    world.fail("b", 1, cause);
    world.end("a", 1, {failure_of(0, "a", 1)});
    const auto orders = world.end("b", 1, {cause});
    EXPECT_EQ(orders.at(0).exit_code, cause.shell_code());
    EXPECT_EQ(orders[0].exits.at(0).rank, 1);
  }
}

TEST(Coordinator, RestartsAllWithinOneBudget) {
  World world(fixed(2, 2));
  world.join("a");
  world.join("b");
  for (int round = 1; round <= 2; ++round) {
    world.fail("a", round, failure_of(0, "a", 1));
    world.end("a", round, {failure_of(0, "a", 1)});
    auto orders = world.end("b", round);
    if (orders.empty())
      orders = world.after(seconds(2));
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

Report join_of(const std::string& name) {
  HostFacts facts = facts_of(name);
  facts.min_hosts = 1;
  facts.max_hosts = 3;
  return {.kind = Report::Kind::join, .from = facts.id, .facts = facts};
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
  std::vector<Report> reports;
  for (const char* name : {"a", "b", "c"})
    reports.push_back(join_of(name));
  World second(between(1, 3));
  EXPECT_THAT(second.coordinator().take_over(reports, log, Clock::now(), seconds(0)), IsEmpty());
  EXPECT_EQ(second.lose("a").at(0).kind, Kind::stop);
  second.end("b", 1);
  const auto orders = second.end("c", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-b", "id-c"));
  EXPECT_EQ(orders[0].round, 2);
}

// The ranks have had it, unless nobody coordinated when it came.
TEST(Coordinator, OneThatTakesOverTellsNoSignalAgain) {
  const Report signal{.kind = Report::Kind::signal, .from = "id-a", .signal = SIGUSR1};
  for (const bool was_told : {true, false}) {
    World first(fixed(1));
    std::vector<Order> log = first.join("a");
    const auto told = first.report(signal);
    if (was_told)
      log.insert(log.end(), told.begin(), told.end());
    World second(fixed(1));
    EXPECT_THAT(second.coordinator().take_over(
                    {join_of("a"), signal}, log, Clock::now(), std::chrono::seconds(0)),
                SizeIs(was_told ? 0 : 1));
    World third(fixed(1));
    EXPECT_THAT(third.coordinator().take_over(
                    {join_of("a"), signal, signal}, log, Clock::now(), std::chrono::seconds(0)),
                Not(IsEmpty()))
        << "the second one is new";
  }
}

// A host that went while nobody coordinated is missed as it would have been before.
TEST(Coordinator, OneThatTakesOverStopsARoundWhoseHostHasGone) {
  for (const Report::Kind end : {Report::Kind::lost, Report::Kind::leave}) {
    World first(between(1, 3));
    first.join("a");
    first.join("b");
    const auto log = first.join("c");
    const std::vector<Report> reports = {
        join_of("a"), join_of("b"), join_of("c"), {.kind = end, .from = "id-b"}};
    World second(between(1, 3));
    const auto orders =
        second.coordinator().take_over(reports, log, Clock::now(), std::chrono::seconds(0));
    ASSERT_FALSE(orders.empty()) << to_string(end);
    EXPECT_EQ(orders.back().kind, Kind::stop);
    EXPECT_THAT(orders.back().reason, HasSubstr("host b (10.0.0.b)"));
    second.end("a", 1);
    const auto next = second.end("c", 1);
    ASSERT_THAT(next, SizeIs(1));
    EXPECT_THAT(next[0].hosts, ElementsAre("id-a", "id-c"));
  }
}

// Its ranks had ended well, and the successor reads that first.
TEST(Coordinator, OneThatTakesOverDoesNotMissAHostThatWasDone) {
  World first(fixed(2));
  first.join("a");
  const auto log = first.join("b");
  std::vector<Report> reports;
  for (const char* name : {"a", "b"}) {
    reports.push_back({.kind = Report::Kind::join, .from = cat("id-", name)});
    reports.back().facts = facts_of(name);
  }
  reports.push_back({.kind = Report::Kind::ended, .from = "id-a", .round = 1});
  reports.push_back({.kind = Report::Kind::lost, .from = "id-a"});
  World second(fixed(2));
  for (const Order& order :
       second.coordinator().take_over(reports, log, Clock::now(), std::chrono::seconds(0)))
    EXPECT_EQ(order.kind, Kind::refuse) << "in case it lives";
  const auto end = second.end("b", 1);
  ASSERT_THAT(end, SizeIs(1));
  EXPECT_EQ(end[0].kind, Kind::finish);
  EXPECT_EQ(end[0].exit_code, 0);
}

TEST(Coordinator, OneThatTakesOverKnowsWhoIsSetAsideAndHowOldTheJobIs) {
  CoordinatorRules rules = between(1, 3);
  rules.time_limit = seconds(100);
  World second(rules);
  Order started{.kind = Kind::start, .round = 4, .hosts = {"id-a"}, .restart_count = 3};
  started.plan = plan(Inventory{.source = "test", .hosts = {{.name = "a"}}}, {.nproc_per_node = 1});
  started.failures = {{"b", 3}};
  started.set_aside = {"b"};
  const auto orders = second.coordinator().take_over(
      {join_of("a"), join_of("b")}, {started}, Clock::time_point(), seconds(40));
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
