// The coordinator's decisions about hosts: those that join, are refused or missing, leave or are
// lost.
#include "muster/cluster/coordinator.h"

#include <gmock/gmock.h>

#include "muster/base/contains.h"
#include "muster/base/strings.h"
#include "tests/cluster/coordinator_world.h"

namespace muster {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = Order::Kind;

TEST(Coordinator, ALostHostEndsAFixedJob) {
  World world(fixed(2));
  world.join("a");
  world.join("b");
  EXPECT_EQ(world.lose("b").at(0).kind, Kind::stop);
  RankExit peer = failure_of(0, "a", 1);  // it noticed, of course
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

// Hosts with node ranks are where their users have put them.
TEST(Coordinator, NewHostsWithoutNumbersFollowTheNetwork) {
  for (const bool are_numbered : {false, true}) {
    CoordinatorRules rules = fixed(4);
    rules.switches = {{"a", {"l1"}}, {"b", {"l2"}}, {"c", {"l1"}}, {"d", {"l2"}}};
    World world(rules);
    int number = 4;
    std::vector<Order> orders;
    for (const char* name : {"a", "b", "c", "d"})
      orders = world.join(name, are_numbered ? std::optional(--number) : std::nullopt);
    ASSERT_THAT(orders, SizeIs(1));
    if (are_numbered) {
      EXPECT_THAT(orders[0].hosts, ElementsAre("id-d", "id-c", "id-b", "id-a"));
    } else {
      EXPECT_THAT(orders[0].hosts, ElementsAre("id-a", "id-c", "id-b", "id-d"));
    }
  }
}

TEST(Coordinator, HostsThatWereThereStayWhereTheyWereWhateverTheNetwork) {
  CoordinatorRules rules = between(2, 3);
  rules.switches = {{"a", {"l1"}}, {"b", {"l2"}}, {"c", {"l1"}}};
  World world(rules);
  world.join("a");
  world.join("b");
  world.after(seconds(31));
  world.join("c");
  world.end("a", 1);
  const auto orders = world.end("b", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a", "id-b", "id-c"));
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

TEST(Coordinator, TheMissingOnesHaveTheNamesThatTheLauncherKnows) {
  CoordinatorRules rules = fixed(3);
  rules.host_names = {"a", "b", "c"};
  World world(rules);
  world.join("b", 1);
  const auto orders = world.after(std::chrono::minutes(11));
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].reason, HasSubstr("missing: a (node rank 0), c (node rank 2)"));
}

TEST(Coordinator, TheSecondHostWithANumberIsRefused) {
  World world(fixed(3));
  world.join("a", 1);
  const auto orders = world.join("b", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::refuse);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-b"));
  EXPECT_THAT(orders[0].reason, HasSubstr("got 1 on host b and on a"));
}

TEST(Coordinator, AHostThatWasToldAnotherSizeIsRefusedWithBoth) {
  World world(fixed(2));
  HostFacts facts = facts_of("a");
  facts.min_hosts = facts.max_hosts = 3;
  const auto orders = world.report({.kind = Report::Kind::join, .from = "id-a", .facts = facts});
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].reason,
              testing::AllOf(HasSubstr("got 3 on host a"), HasSubstr("and 2 on")));
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
  EXPECT_THAT(world.join_again("a", 0, "id-a2"), IsEmpty()) << "the first may live";
  EXPECT_THAT(world.sign_of_life("a"), IsEmpty()) << "it may have been given before";
  world.lose("a");
  const auto orders = world.join("b", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a2", "id-b"));
}

TEST(Coordinator, AHostThatWasKilledAndStartedAgainGoesOnInItsPlace) {
  CoordinatorRules rules = fixed(2);
  rules.max_restarts = 1;
  World world(rules);
  world.join("a", 0);
  world.join("b", 1);
  world.join_again("b", 1, "id-b2");
  EXPECT_THAT(world.lose("b"), ElementsAre(Field(&Order::kind, Kind::stop)));
  const auto orders = world.end("a", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a", "id-b2"));
}

TEST(Coordinator, TheSameAgentStartedTwiceIsRefusedAndTheFirstGoesOn) {
  World world(fixed(2));
  world.join("a", 0);
  ASSERT_THAT(world.join("b", 1), SizeIs(1));
  EXPECT_THAT(world.join_again("b", 1, "id-b2"), IsEmpty());
  world.join_again("b", 1, "id-b3");
  world.lose("b3");
  EXPECT_THAT(world.sign_of_life("a"), IsEmpty());
  EXPECT_THAT(world.sign_of_life("b"), IsEmpty());
  const auto orders = world.sign_of_life("b");
  ASSERT_THAT(orders, SizeIs(1)) << "one for each that still waits, and no stop";
  EXPECT_EQ(orders[0].kind, Kind::refuse);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-b2"));
  EXPECT_THAT(orders[0].reason, HasSubstr("got 1 on host b and on b (10.0.0.b)"));
  EXPECT_THAT(world.sign_of_life("b"), IsEmpty());
}

// Where ends are seen late, one with the GPUs of a member waits for what becomes of that member.
TEST(Coordinator, ASecondAgentWithTheGpusOfOneThatMayHaveEndedWaits) {
  CoordinatorRules rules = between(1, 3);
  rules.sees_ends_late = true;
  World world(rules);
  const auto join = [&](const std::string& id) {
    HostFacts facts = facts_of("a");
    facts.id = id;
    facts.host.gpus = {Gpu{.uuid = {"GPU-0"}, .model = "Test GPU", .memory_total_bytes = 1 << 30}};
    return world.report({.kind = Report::Kind::join, .from = id, .facts = facts});
  };
  join("id-a");
  EXPECT_THAT(world.after(std::chrono::minutes(1)), ElementsAre(Field(&Order::kind, Kind::start)));
  EXPECT_THAT(join("id-a2"), IsEmpty()) << "the first may have ended";
  EXPECT_THAT(world.sign_of_life("a"), IsEmpty()) << "it may have been given before";
  const auto refused = world.sign_of_life("a");
  ASSERT_THAT(refused, ElementsAre(Field(&Order::kind, Kind::refuse)));
  EXPECT_THAT(refused[0].reason, HasSubstr("are on one machine: both have GPU-0"));
  EXPECT_THAT(join("id-a3"), IsEmpty());
  const auto orders = world.lose("a");
  ASSERT_THAT(orders, SizeIs(2)) << "the end of the round and the next";
  EXPECT_EQ(orders[1].kind, Kind::start);
  EXPECT_THAT(orders[1].hosts, ElementsAre("id-a3"));
}

TEST(Coordinator, AReportThatIsToldAgainCountsOnce) {
  CoordinatorRules rules = fixed(1);
  rules.max_restarts = 3;
  World world(rules);
  world.join("a", 0);
  const Report failing{.kind = Report::Kind::failing,
                       .from = "id-a",
                       .number = 1,
                       .round = 1,
                       .exits = {failure_of(0, "a", 1)}};
  EXPECT_THAT(world.report(failing), SizeIs(1));
  EXPECT_THAT(world.report(failing), IsEmpty());
  const Report ended{.kind = Report::Kind::ended,
                     .from = "id-a",
                     .number = 2,
                     .round = 1,
                     .exits = {failure_of(0, "a", 1)}};
  const auto orders = world.report(ended);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].restart_count, 1);
  EXPECT_THAT(world.report(ended), IsEmpty());
}

TEST(Coordinator, AnElasticJobDoesWithoutAHostThatCannotStart) {
  World world(between(1, 2));
  world.join("a");
  world.join("b");
  world.report({.kind = Report::Kind::ended,
                .from = "id-b",
                .round = 1,
                .error = "GPU 0 is leased",
                .exit_code = 1});
  const auto orders = world.end("a", 1);
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].kind, Kind::start);
  EXPECT_THAT(orders[0].hosts, ElementsAre("id-a"));
}

// Its agent is started again and again by whoever watches over it.
TEST(Coordinator, AHostThatCannotStartIsSetAsideAsOneThatFails) {
  CoordinatorRules rules = between(1, 2);
  rules.max_host_failures = 2;
  World world(rules);
  world.join("a");
  world.join("b");
  int round = 1;
  for (int failures = 1; failures <= 2; ++failures) {
    world.report({.kind = Report::Kind::ended,
                  .from = "id-b",
                  .round = round,
                  .error = "GPU 0 is leased",
                  .exit_code = 1});
    const auto alone = world.end("a", round);
    ASSERT_THAT(alone, SizeIs(1));
    EXPECT_THAT(alone[0].hosts, ElementsAre("id-a"));
    EXPECT_EQ(alone[0].restart_count, 0) << "what others do is not the job's failure";
    const auto joined = world.join("b");
    ASSERT_THAT(joined, SizeIs(1));
    EXPECT_EQ(joined[0].kind, failures == 1 ? Kind::stop : Kind::refuse);
    if (failures == 2) {
      EXPECT_THAT(
          joined[0].reason,
          HasSubstr(
              "host b is set aside: its ranks have failed, or could not be started, 2 times"));
    }
    const auto both = world.end("a", round + 1);
    round += 2;
    if (failures == 1) {
      ASSERT_THAT(both, SizeIs(1));
      EXPECT_THAT(both[0].hosts, ElementsAre("id-a", "id-b"));
    }
  }
  EXPECT_THAT(world.said(), testing::Contains(HasSubstr("host b is set aside")));
}

// One start that came to nothing, then ranks that failed.
TEST(Coordinator, AllFailuresOfAHostCountTogether) {
  CoordinatorRules rules = between(1, 2, 10);
  rules.max_host_failures = 2;
  World world(rules);
  world.join("a");
  world.join("b");
  world.report({.kind = Report::Kind::ended,
                .from = "id-b",
                .round = 1,
                .error = "GPU 0 is leased",
                .exit_code = 1});
  world.end("a", 1);
  world.join("b");
  world.end("a", 2);
  world.fail("b", 3, failure_of(1, "b", 1));
  world.end("b", 3, {failure_of(1, "b", 1)});
  const auto orders = world.end("a", 3);
  const std::string text =
      "host b is set aside: its ranks have failed, or could not be started, 2 times "
      "(--max-host-failures)";
  EXPECT_THAT(world.said(), testing::Contains(text));
  ASSERT_FALSE(orders.empty());
  EXPECT_EQ(orders[0].kind, Kind::refuse);
  EXPECT_EQ(orders[0].reason, text) << "it is told what all others are";
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
      for (const Order& order : world.after(seconds(2)))
        orders.push_back(order);
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
    const auto stop = world.report(
        {.kind = Report::Kind::ended, .from = "id-b", .round = 1, .stopped_by = SIGTERM});
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

// As when a service is started again before its ranks have ended: nobody loses the first agent.
TEST(Coordinator, ASecondAgentTakesThePlaceOfOneThatLeaves) {
  CoordinatorRules rules = between(1, 3);
  rules.sees_ends_late = true;
  World world(rules);
  const auto join = [&](const std::string& id, const std::string& host) {
    HostFacts facts = facts_of(host);
    facts.id = id;
    facts.host.gpus = {
        Gpu{.uuid = {cat("GPU-", host)}, .model = "Test GPU", .memory_total_bytes = 1 << 30}};
    return world.report({.kind = Report::Kind::join, .from = id, .facts = facts});
  };
  join("id-a", "a");
  join("id-b", "b");
  world.after(std::chrono::minutes(1));
  EXPECT_THAT(join("id-b2", "b"), IsEmpty()) << "the first may have ended";
  world.report({.kind = Report::Kind::ended, .from = "id-b", .round = 1, .stopped_by = SIGTERM});
  Orders orders = world.end("a", 1);
  const Orders later = world.after(std::chrono::minutes(1));
  orders.insert(orders.end(), later.begin(), later.end());
  const auto is_with_it = [](const Order& order) {
    return order.kind == Kind::start && contains(order.hosts, "id-b2");
  };
  EXPECT_TRUE(any_of(orders, is_with_it));
}

TEST(Coordinator, AHostThatCannotStartEndsTheJobWithItsReason) {
  World world(fixed(2));
  world.join("a");
  world.join("b");
  world.report({.kind = Report::Kind::ended,
                .from = "id-b",
                .round = 1,
                .error = "GPU 0 is leased",
                .exit_code = 1});
  const auto orders = world.end("a", 1);
  EXPECT_THAT(orders.at(0).reason,
              testing::AllOf(HasSubstr("host b"), HasSubstr("GPU 0 is leased")));
}

// Each with a name of its own: some fail to start, others leave.
TEST(Coordinator, HostsThatCameAndWentAreForgotten) {
  World world(between(1, 3));
  world.join("1");
  world.after(std::chrono::hours(1));
  int round = 1;
  const auto come_and_go = [&](int first, int last) {
    for (int host = first; host <= last; ++host) {
      const std::string id = "id-" + cat(host);
      world.join(cat(host));
      world.end("1", round++);
      world.report({.kind = Report::Kind::ended,
                    .from = id,
                    .number = 1,
                    .round = round,
                    .error = "no devices"});
      world.end("1", round++);
      world.report({.kind = Report::Kind::leave, .from = id, .number = 2});
    }
    return world.coordinator().remembered();
  };
  const size_t few = come_and_go(1'000, 1'199);
  EXPECT_EQ(come_and_go(1'200, 1'999), few);
  EXPECT_EQ(round, 2'001) << "each came and went";
}

}  // namespace
}  // namespace muster
