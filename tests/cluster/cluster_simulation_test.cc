// What a job of many hosts costs its coordinator does not grow faster than the job.
#include "benchmarks/cluster_simulation.h"

#include <gmock/gmock.h>

namespace {

constexpr int kHosts = 200;

TEST(ClusterSimulation, EachHostSaysAndHearsAFewThings) {
  ClusterSimulation simulation({}, kHosts, kHosts);
  EXPECT_NEAR(simulation.start().messages_per_host, 4, 0.01)
      << "a join, an order, a question for the own part of the plan, an answer";
  EXPECT_NEAR(simulation.lose_a_host().messages_per_host, 4, 0.1)
      << "a refusal, a question for what follows, a stop, an end";
  EXPECT_NEAR(simulation.replace_them().messages_per_host, 3, 0.1) << "an order, a part";
  EXPECT_NEAR(simulation.fail_everywhere().messages_per_host, 5, 0.1)
      << "an end, a stop, an order, a part";
  EXPECT_NEAR(simulation.end().messages_per_host, 3, 0.1) << "an end, an order, a leave";
}

// A join is half of that.
TEST(ClusterSimulation, AStartTakesAFewKilobytesAHostHoweverManyThereAre) {
  for (const int hosts : {kHosts, 5 * kHosts}) {
    ClusterSimulation simulation({}, hosts, hosts);
    EXPECT_LT(simulation.start().bytes_per_host, 4'000) << hosts;
    EXPECT_LT(simulation.lose_a_host().bytes_per_host, 4'000) << hosts;
    EXPECT_LT(simulation.replace_them().bytes_per_host, 4'000) << hosts;
    EXPECT_LT(simulation.fail_everywhere().bytes_per_host, 4'000) << hosts;
  }
}

// Each loss is an order, and a host that has not read the one before gets several in one answer.
// On this network the coordinator has written all before the first hosts ask on.
TEST(ClusterSimulation, HostsReadTogetherWhatWasOrderedTogether) {
  ClusterSimulation simulation({.latency = 5e-3}, 2 * kHosts, 2 * kHosts);
  simulation.start();
  EXPECT_LT(simulation.lose_hosts(kHosts).messages_per_host, 40);
  EXPECT_LT(simulation.replace_them().messages_per_host, 4);
  EXPECT_NEAR(simulation.end().messages_per_host, 3, 0.1);
}

TEST(ClusterSimulation, LogsDoNotGrowWhileHostsComeAndGo) {
  ClusterSimulation simulation({}, kHosts, kHosts);
  simulation.start();
  simulation.come_and_go(5);
  const size_t entries = simulation.log_entries();
  const double bytes = simulation.log_bytes();
  simulation.come_and_go(20);
  EXPECT_EQ(simulation.log_entries(), entries);
  EXPECT_LT(simulation.log_bytes(), 1.1 * bytes);
  EXPECT_LT(entries, 3 * kHosts) << "a join and an end of each, and a few orders";
}

TEST(ClusterSimulation, LostMessagesAndSlowHostsChangeTheTimeAndNotTheEnd) {
  ClusterSimulation simulation({.slow_latency = 1, .loss = 0.05}, kHosts, kHosts);
  simulation.start();
  simulation.come_and_go(5);
  EXPECT_NEAR(simulation.end().messages_per_host, 3, 0.1);
}

}  // namespace
