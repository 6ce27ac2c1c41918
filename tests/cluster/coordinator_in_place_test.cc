// What the coordinator does with `--on-failure replace`: rounds in which processes go on.
#include <gmock/gmock.h>
#include <signal.h>

#include "muster/base/strings.h"
#include "muster/cluster/coordinator_options.h"
#include "tests/cluster/coordinator_world.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

CoordinatorRules in_place(CoordinatorRules rules) {
  rules.replaces = true;
  if (rules.max_hosts == 3)
    rules.last_call = milliseconds(0);
  return rules;
}

// Two hosts of one rank each, in round 1.
struct TwoHosts : World {
  explicit TwoHosts(CoordinatorRules rules) : World(in_place(std::move(rules))) {
    join("a", 0);
    const auto orders = join("b", 1);
    EXPECT_EQ(orders.back().kind, Order::Kind::start);
    EXPECT_FALSE(orders.back().in_place);
  }
};

TEST(CoordinatorInPlace, AFailureBeginsARoundInWhichTheOthersGoOn) {
  TwoHosts world(fixed(2, 3));
  const auto orders = world.fail("b", 1, failure_of(1, "b", 0, SIGKILL));
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Order::Kind::start);
  EXPECT_TRUE(orders[0].in_place);
  EXPECT_EQ(orders[0].round, 2);
  EXPECT_EQ(orders[0].restart_count, 1);
  EXPECT_EQ(orders[0].pause.count(), 0);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a", "id-b"));
  EXPECT_THAT(orders[0].exits, SizeIs(1));
  EXPECT_THAT(world.said().back(),
              HasSubstr("a replacement is started, the others keep their processes (1 of 3"));
  EXPECT_THAT(world.end("a", 2), IsEmpty());
  EXPECT_EQ(world.end("b", 2).at(0).exit_code, 0);
}

TEST(CoordinatorInPlace, FailuresOfARoundThatIsOverAreItsHostsToStart) {
  TwoHosts world(fixed(2, 3));
  world.fail("b", 1, failure_of(1, "b", 0, SIGKILL));
  EXPECT_THAT(world.fail("a", 1, failure_of(0, "a", 0, SIGKILL)), IsEmpty());
  const auto again = world.fail("a", 2, failure_of(0, "a", 0, SIGKILL));
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].round, 3);
  EXPECT_EQ(again[0].pause, milliseconds(1'000)) << "two in a minute";
}

// A host that is stopped alone can save only once the replacement is there.
TEST(CoordinatorInPlace, APauseLeavesAHostThatIsStoppedTimeToSave) {
  CoordinatorRules rules = fixed(2, 9);
  rules.longest_pause = milliseconds(1'500);
  TwoHosts world(rules);
  for (int round = 1; const int64_t pause : {0, 1'000, 1'500, 1'500}) {
    const auto orders = world.fail("b", round, failure_of(1, "b", 0, SIGKILL));
    ASSERT_THAT(orders, SizeIs(1));
    EXPECT_EQ(orders[0].pause, milliseconds(pause)) << round;
    ++round;
  }
}

// Without one, starts that fail would follow each other at once.
TEST(CoordinatorInPlace, StartsPauseWithoutAGracePeriodToo) {
  LaunchOptions options;
  options.shutdown_timeout = milliseconds(0);
  EXPECT_EQ(rules_of(options, {}).longest_pause, milliseconds(1'000));
  options.shutdown_timeout = milliseconds(30'000);
  EXPECT_EQ(rules_of(options, {}).longest_pause, milliseconds(15'000));
}

// Ranks of which none has failed stop after the same step, also where they are apart just now.
TEST(CoordinatorInPlace, AStopThatIsAskedForLetsTheRanksComeTogether) {
  CoordinatorRules rules = fixed(2, 3);
  rules.time_limit = milliseconds(5'000);
  for (const bool by_time : {false, true}) {
    TwoHosts world(rules);
    world.fail("b", 1, failure_of(1, "b", 0, SIGKILL));
    const auto orders =
        by_time ? world.after(milliseconds(5'000))
                : world.report({.kind = Report::Kind::stop, .from = "id-a", .stopped_by = SIGTERM});
    ASSERT_THAT(orders, SizeIs(1));
    EXPECT_EQ(orders[0].kind, Order::Kind::stop);
    EXPECT_TRUE(order_from_text(to_text(orders[0])).is_asked);
  }
}

// Until then a host waits for ranks that are to follow, and spares those that have followed.
TEST(CoordinatorInPlace, AfterSuchAStopAnEndOrAFailureEndsTheRestAtOnce) {
  for (const bool has_failed : {false, true}) {
    TwoHosts world(fixed(2, 3));
    const Report stop{.kind = Report::Kind::stop, .from = "id-a", .stopped_by = SIGTERM};
    EXPECT_TRUE(world.report(stop).at(0).is_asked);
    const auto orders =
        has_failed ? world.fail("b", 1, failure_of(1, "b", 0, SIGKILL)) : world.end("a", 1);
    ASSERT_THAT(orders, SizeIs(1));
    EXPECT_EQ(orders[0].kind, Order::Kind::stop);
    EXPECT_EQ(orders[0].round, 1);
    EXPECT_FALSE(orders[0].is_asked);
    EXPECT_THAT(world.fail("b", 1, failure_of(1, "b", 0, SIGKILL)), IsEmpty()) << "once";
  }
}

TEST(CoordinatorInPlace, EndsAllWhereTheBudgetIsUsedUp) {
  TwoHosts world(fixed(2, 1));
  world.fail("b", 1, failure_of(1, "b", 0, SIGKILL));
  const auto orders = world.fail("b", 2, failure_of(1, "b", 0, SIGKILL));
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Order::Kind::stop);
  EXPECT_FALSE(orders[0].is_asked);
}

// A command that maps ranks may fail, or give another plan, when it is asked again.
TEST(CoordinatorInPlace, WhereThePlanIsRefusedOrAnotherAllStartAgain) {
  TwoHosts refused(fixed(2, 3));
  refused.refusal = "no plan";
  EXPECT_EQ(refused.fail("b", 1, failure_of(1, "b", 0, SIGKILL)).at(0).kind, Order::Kind::stop);
  EXPECT_THAT(refused.said().back(), HasSubstr("not replaced in place: no plan"));
  TwoHosts other(fixed(2, 3));
  other.nproc = 2;
  EXPECT_EQ(other.fail("b", 1, failure_of(1, "b", 0, SIGKILL)).at(0).kind, Order::Kind::stop);
  EXPECT_THAT(other.said().back(), HasSubstr("gives a (10.0.0.a) other ranks or devices"));
}

TEST(CoordinatorInPlace, NoRankIsReplacedWhereAHostsRanksHaveEndedEvenIfItHasGone) {
  TwoHosts world(fixed(2, 3));
  world.end("a", 1);
  EXPECT_THAT(world.lose("a"), IsEmpty());
  EXPECT_EQ(world.fail("b", 1, failure_of(1, "b", 0, SIGKILL)).at(0).kind, Order::Kind::stop);
  EXPECT_THAT(world.said().back(),
              HasSubstr("not replaced in place: the ranks of another host have ended already"));
}

TEST(CoordinatorInPlace, RanksThatEndForTheSakeOfAnotherCannotGoOn) {
  TwoHosts world(fixed(2, 3));
  RankExit consequence = failure_of(0, "a", 1);
  consequence.message = "peer_failed: all_reduce #3: rank 1 ended";
  consequence.facts.code = "peer_failed";
  EXPECT_EQ(world.fail("a", 1, consequence).at(0).kind, Order::Kind::stop);
  EXPECT_THAT(world.said().back(),
              HasSubstr("not replaced in place: rank 0 ended because it had lost another"));
}

TEST(CoordinatorInPlace, WhatTheLossOfAReplacedRankEndsIsNotTheCause) {
  TwoHosts world(fixed(2, 1));
  world.fail("b", 1, failure_of(1, "b", 3));
  RankExit consequence = failure_of(0, "a", 1);
  consequence.facts.code = "peer_failed";
  EXPECT_EQ(world.fail("a", 2, consequence).at(0).kind, Order::Kind::stop);
  RankExit successor = failure_of(1, "b", 0, SIGTERM);
  successor.sent_signal = SIGTERM;
  world.end("a", 2, {consequence});
  const auto orders = world.end("b", 2, {successor});
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].exit_code, 3);
  EXPECT_THAT(orders[0].exits,
              ElementsAre(testing::Field(&RankExit::rank, 1), testing::Field(&RankExit::rank, 0)));
}

TEST(CoordinatorInPlace, RanksThatHaveStoppedAreNotReplaced) {
  TwoHosts world(fixed(2, 3));
  const auto orders = world.fail("a", 1, failure_of(0, "a", 75));
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Order::Kind::stop);
  EXPECT_EQ(orders[0].reason, "rank 0 on host a has stopped, as it was asked to")
      << "which is no failure";
}

// Host a's rank had done its work when it was to come to round 2.
TEST(CoordinatorInPlace, WhereARankHadEndedAlreadyAllStartAgain) {
  TwoHosts world(fixed(2, 3));
  world.fail("b", 1, failure_of(1, "b", 0, SIGKILL));
  const auto orders = world.report({.kind = Report::Kind::failing,
                                    .from = "id-a",
                                    .round = 2,
                                    .exits = {failure_of(1, "b", 0, SIGKILL)},
                                    .error = "rank 0 had ended already"});
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Order::Kind::stop);
  EXPECT_THAT(orders[0].reason, HasSubstr("rank 0 had ended already"));
  world.end("a", 2);
  world.end("b", 2);
  EXPECT_THAT(world.said().back(), HasSubstr("rank 1 on host b failed"));
  EXPECT_THAT(world.said().back(), HasSubstr("starting all ranks again in 1.0s (restart 2 of 3)"));
  const auto again = world.after(milliseconds(1'000));
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_FALSE(again[0].in_place);
}

TEST(CoordinatorInPlace, TheEndOfASuccessorIsNotTakenForTheFailure) {
  TwoHosts world(fixed(2, 0));
  world.fail("b", 1, failure_of(1, "b", 0, SIGKILL));
  RankExit successor = failure_of(1, "b", 0, SIGTERM);
  successor.sent_signal = SIGTERM;
  world.end("a", 1);
  const auto orders = world.end("b", 1, {successor});
  ASSERT_THAT(orders, SizeIs(1));
  ASSERT_THAT(orders[0].exits, SizeIs(1));
  EXPECT_EQ(orders[0].exits[0].signal, SIGKILL);
}

TEST(CoordinatorInPlace, TheOthersGoOnWithoutAHostThatIsLost) {
  TwoHosts world(between(1, 2));
  const auto orders = world.lose("a");
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_TRUE(orders[0].in_place);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-b"));
  EXPECT_THAT(orders[0].plan.ranks, SizeIs(1));
  EXPECT_EQ(orders[0].store, "tcp://10.0.0.b:1");
  EXPECT_EQ(orders[0].restart_count, 0) << "which costs nothing";
  EXPECT_THAT(world.said().back(),
              HasSubstr("the others keep their processes: 1 rank goes on in place of 2"));
}

TEST(CoordinatorInPlace, WhereAHostWouldHaveOtherRanksAllStartAgain) {
  TwoHosts world(between(1, 2, 1));
  world.nproc = 2;
  const auto orders = world.lose("a");
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Order::Kind::stop);
  EXPECT_THAT(world.said(),
              testing::Contains(HasSubstr("the others do not go on in place: the plan for these "
                                          "hosts gives b (10.0.0.b) other ranks or devices")));
}

TEST(CoordinatorInPlace, ASpareHostTakesThePlaceOfOneThatIsLost) {
  TwoHosts world(between(1, 2));
  EXPECT_THAT(world.join("c"), IsEmpty());
  const auto orders = world.lose("b");
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_TRUE(orders[0].in_place);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a", "id-c"));
}

TEST(CoordinatorInPlace, AHostThatJoinsComesToTheOthers) {
  CoordinatorRules rules = in_place(between(1, 2));
  rules.last_call = milliseconds(0);
  World world(rules);
  EXPECT_FALSE(world.join("a").back().in_place);
  const auto orders = world.join("b");
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_TRUE(orders[0].in_place);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a", "id-b"));
}

TEST(CoordinatorInPlace, WithTooFewHostsAllEndAndWait) {
  TwoHosts world(between(2, 3));
  EXPECT_EQ(world.lose("b").at(0).kind, Order::Kind::stop);
  EXPECT_THAT(world.said().back(),
              HasSubstr("do not go on in place: expected 2 hosts at least (--nnodes), got 1"));
}

TEST(CoordinatorInPlace, NobodyGoesOnWhereAHostsRanksHaveEnded) {
  TwoHosts world(between(1, 2));
  world.end("a", 1);
  EXPECT_EQ(world.lose("b").at(0).kind, Order::Kind::stop);
  EXPECT_THAT(world.said(),
              testing::Contains(HasSubstr("the ranks of host a (10.0.0.a) have ended already")));
}

// A host that leaves by a signal: its ranks were killed, or they have stopped, and all others with
// them.
TEST(CoordinatorInPlace, AHostThatLeavesIsDoneWithout) {
  TwoHosts world(between(1, 2));
  const auto orders = world.report({.kind = Report::Kind::ended,
                                    .from = "id-b",
                                    .round = 1,
                                    .exits = {failure_of(1, "b", 0, SIGTERM)},
                                    .stopped_by = SIGTERM});
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_TRUE(orders[0].in_place);
  TwoHosts stopping(between(1, 2));
  const auto stop = stopping.report({.kind = Report::Kind::ended,
                                     .from = "id-b",
                                     .round = 1,
                                     .exits = {failure_of(1, "b", 75)},
                                     .stopped_by = SIGTERM});
  EXPECT_EQ(stop.at(0).kind, Order::Kind::stop);
}

// Every host of an elastic job got a signal, and all ranks have stopped after the same step.
TEST(CoordinatorInPlace, AJobOfWhichAllHostsStopHasStopped) {
  TwoHosts world(between(1, 2));
  const auto stopped = [&](const std::string& host, int rank) {
    return world.report({.kind = Report::Kind::ended,
                         .from = "id-" + host,
                         .round = 1,
                         .exits = {failure_of(rank, host, 75)},
                         .stopped_by = SIGTERM});
  };
  stopped("a", 0);
  const auto orders = stopped("b", 1);
  ASSERT_FALSE(orders.empty());
  EXPECT_EQ(orders.back().kind, Order::Kind::finish);
  EXPECT_EQ(orders.back().exit_code, 75);
}

// Failures that were made good are counted as the others are, for as many names.
TEST(CoordinatorInPlace, HostsWithEverNewNamesAreForgotten) {
  CoordinatorRules rules = in_place(between(1, 3));
  rules.max_restarts = 1'000;
  World world(std::move(rules));
  world.join("1");
  const auto come_fail_and_go = [&](int first, int last) {
    for (int host = first; host <= last; ++host) {
      const std::string name = cat(host);
      const int round = world.join(name).back().round;
      world.fail(name, round, failure_of(1, name, 1));
      world.report({.kind = Report::Kind::lost, .from = "id-" + name});
    }
    return world.coordinator().remembered();
  };
  const size_t few = come_fail_and_go(1'000, 1'199);
  EXPECT_EQ(come_fail_and_go(1'200, 1'399), few);
  EXPECT_GE(few, 200U) << "a hundred names, and their failures";
}

}  // namespace
}  // namespace muster
