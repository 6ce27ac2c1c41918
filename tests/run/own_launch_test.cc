// RunOptions as the launcher takes them. That they do what the flags do, options_test.py shows.
#include "muster/run/own_launch.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <functional>

#include "muster/base/error.h"
#include "muster/launch/check_launch.h"
#include "muster/run/launcher_wins.h"
#include "muster/run/run_calls.h"
#include "tests/device/scratch.h"

namespace muster::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

LaunchOptions launch_of(const RunOptions& options) {
  char program[] = "program";
  char* argv[] = {program, nullptr};
  return own_launch_options(options, 1, argv);
}

TEST(OwnLaunch, TheDefaultsAreTheLaunchers) {
  const LaunchOptions launch = launch_of({});
  const LaunchOptions none;
  EXPECT_EQ(launch.program, "/proc/self/exe");
  EXPECT_FALSE(launch.request.nproc_per_node);
  EXPECT_TRUE(launch.request.gpus.is_all());
  EXPECT_EQ(launch.max_restarts, 0);
  EXPECT_EQ(launch.failure_policy, FailurePolicy::end);
  EXPECT_EQ(launch.rejoin_within, none.rejoin_within);
  EXPECT_EQ(launch.shutdown_timeout, none.shutdown_timeout);
  EXPECT_EQ(launch.stop_signals, none.stop_signals);
  EXPECT_EQ(launch.redirects, none.redirects);
  EXPECT_EQ(launch.tee, none.tee);
  EXPECT_FALSE(launch.time_limit || launch.stopped_timeout || launch.wait);
  EXPECT_TRUE(launch.lease && launch.looks_at_gpus && launch.collapse);
  EXPECT_FALSE(launch.quiet || launch.json || launch.dry_run);
}

TEST(OwnLaunch, EachOptionOfThePlan) {
  const LaunchOptions launch = launch_of({.nproc_per_node = 3,
                                          .gpu_only = true,
                                          .gpus = "0-5",
                                          .gpus_per_rank = 2,
                                          .policy = "numa",
                                          .map = {1, 0},
                                          .choose = [](const Host&, int) { return std::vector{7}; },
                                          .scores = {{"0", 2.0}},
                                          .rank_memory = {1, 2},
                                          .global_batch = 64,
                                          .mesh = {{"dp", 3}},
                                          .surplus = Surplus::share,
                                          .visibility = Visibility::own_first,
                                          .numa_binding = NumaBinding::socket,
                                          .cpu_slots = 5,
                                          .inventory = "box.json",
                                          .wait = milliseconds(9)});
  const Request& request = launch.request;
  EXPECT_EQ(request.nproc_per_node, 3);
  EXPECT_TRUE(request.gpu_only && !request.cpu_only);
  EXPECT_EQ(request.gpus.text, "0-5");
  EXPECT_EQ(request.gpus_per_rank, 2);
  EXPECT_EQ(request.policy, "numa");
  EXPECT_THAT(request.map, ElementsAre(1, 0));
  EXPECT_THAT(request.choose(Host{}, 1), ElementsAre(7));
  EXPECT_EQ(request.scores.at("0"), 2.0);
  EXPECT_THAT(request.rank_memory_bytes, ElementsAre(1, 2));
  EXPECT_EQ(request.global_batch, 64);
  EXPECT_THAT(request.mesh, ElementsAre(MeshAxis{"dp", 3}));
  EXPECT_EQ(request.surplus, Surplus::share);
  EXPECT_EQ(request.visibility, Visibility::own_first);
  EXPECT_EQ(request.numa_binding, NumaBinding::socket);
  EXPECT_EQ(launch.cpu_slots, 5);
  EXPECT_EQ(launch.inventory, "box.json");
  EXPECT_EQ(launch.wait, milliseconds(9));
  EXPECT_TRUE(launch_of({.cpu_only = true}).request.cpu_only);
  EXPECT_EQ(launch_of({.plan = "plan.json"}).plan, "plan.json");
}

TEST(OwnLaunch, EachOptionOfTheJob) {
  const LaunchOptions launch = launch_of({.no_lease = true,
                                          .no_gpu_check = true,
                                          .env = {{"A", "b"}},
                                          .workdir = "there",
                                          .run_dir = "runs/a",
                                          .timeout = "90m",
                                          .max_restarts = 2,
                                          .on_failure = FailurePolicy::replace,
                                          .collective_timeout = milliseconds(700),
                                          .stopped_timeout = milliseconds(5),
                                          .shutdown_timeout = milliseconds(6),
                                          .signals_to_handle = {SIGUSR2},
                                          .dry_run = true,
                                          .json = true,
                                          .quiet = true,
                                          .no_collapse = true,
                                          .trace = "operators",
                                          .redirects = "1",
                                          .tee = "2",
                                          .log_dir = "logs",
                                          .local_ranks_filter = {1},
                                          .log_line_prefix_template = "${rank}:"});
  EXPECT_FALSE(launch.lease || launch.looks_at_gpus || launch.collapse);
  EXPECT_TRUE(launch.dry_run && launch.json && launch.quiet);
  EXPECT_EQ(launch.extra_env.at("A"), "b");
  EXPECT_EQ(launch.extra_env.at("MUSTER_TRACE"), "operators");
  EXPECT_EQ(launch.extra_env.at("MUSTER_COLLECTIVE_TIMEOUT"), "700ms");
  EXPECT_TRUE(launch.extra_env.contains(kRunCallsVariable));
  EXPECT_EQ(launch.rejoin_within, milliseconds(700));
  EXPECT_EQ(launch.work_dir, "there");
  EXPECT_EQ(launch.run_dir, "runs/a");
  EXPECT_EQ(launch.time_limit, milliseconds(90 * 60'000));
  EXPECT_FALSE(launch.limit_has_begun);
  EXPECT_EQ(launch.max_restarts, 2);
  EXPECT_EQ(launch.failure_policy, FailurePolicy::replace);
  EXPECT_EQ(launch.stopped_timeout, milliseconds(5));
  EXPECT_EQ(launch.shutdown_timeout, milliseconds(6));
  EXPECT_THAT(launch.stop_signals, ElementsAre(SIGUSR2));
  EXPECT_EQ(launch.redirects, "1");
  EXPECT_EQ(launch.tee, "2");
  EXPECT_EQ(launch.log_dir, "logs");
  EXPECT_THAT(launch.local_ranks_filter, ElementsAre(1));
  EXPECT_EQ(launch.line_prefix, "${rank}:");
}

TEST(OwnLaunch, ReplacingHasRestartsOfItsOwn) {
  EXPECT_EQ(launch_of({.on_failure = FailurePolicy::replace}).max_restarts, kReplacements);
  EXPECT_EQ(launch_of({.max_restarts = 0, .on_failure = FailurePolicy::replace}).max_restarts, 0);
}

TEST(OwnLaunch, TheEnvironmentComesBeforeTheOptions) {
  const ScopedEnv nproc("MUSTER_NPROC", "4");
  const ScopedEnv gpus("MUSTER_GPUS", "1");
  const ScopedEnv policy("MUSTER_POLICY", "pack");
  const ScopedEnv surplus("MUSTER_SURPLUS", "cpu");
  const ScopedEnv inventory("MUSTER_INVENTORY", "other.json");
  const ScopedEnv on_failure("MUSTER_ON_FAILURE", "continue");
  const ScopedEnv timeout("MUSTER_COLLECTIVE_TIMEOUT", "3s");
  const ScopedEnv trace("MUSTER_TRACE", "0");
  const LaunchOptions launch = launch_of({.nproc_per_node = 2,
                                          .gpus = "0",
                                          .policy = "numa",
                                          .surplus = Surplus::share,
                                          .inventory = "box.json",
                                          .on_failure = FailurePolicy::replace,
                                          .collective_timeout = milliseconds(5),
                                          .trace = "1"});
  EXPECT_EQ(launch.request.nproc_per_node, 4);
  EXPECT_EQ(launch.request.gpus.text, "1");
  EXPECT_EQ(launch.request.policy, "pack");
  EXPECT_EQ(launch.request.surplus, Surplus::cpu);
  EXPECT_EQ(launch.inventory, "other.json");
  EXPECT_EQ(launch.failure_policy, FailurePolicy::go_on);
  EXPECT_EQ(launch.max_restarts, 0);
  EXPECT_EQ(launch.rejoin_within, milliseconds(3000));
  EXPECT_FALSE(launch.extra_env.contains("MUSTER_TRACE"));
  EXPECT_FALSE(launch.extra_env.contains("MUSTER_COLLECTIVE_TIMEOUT"));
}

RankDevice placed_by_a_launcher() {
  RankDevice device;
  device.mesh = {{{"dp", 2}, {"tp", 2}}};
  device.batch_shares = {10, 6, 8, 8};
  return device;
}

TEST(LauncherWins, WhatItSaysTooIsNotUsed) {
  const RankEnv env{.world_size = 4, .local_world_size = 2, .plan = "plan.json"};
  const RankDevice placed = placed_by_a_launcher();
  EXPECT_THAT(unused_options({}, env, placed), IsEmpty());
  EXPECT_THAT(unused_options({.nproc_per_node = 3}, env, placed),
              ElementsAre("RunOptions::nproc_per_node"));
  EXPECT_THAT(unused_options({.nproc_per_node = 2, .mesh = {{"dp", -1}, {"tp", 2}}}, env, placed),
              IsEmpty());
  EXPECT_THAT(unused_options({.global_batch = 32}, env, placed), IsEmpty());
  EXPECT_THAT(unused_options({.global_batch = 64, .mesh = {{"dp", 4}}}, env, placed),
              ElementsAre("RunOptions::global_batch", "RunOptions::mesh"));
  EXPECT_THAT(unused_options({.surplus = Surplus::drop}, env, placed),
              ElementsAre("RunOptions::surplus"));
  EXPECT_THAT(unused_options({.surplus = Surplus::drop}, {.world_size = 4}, {}), IsEmpty());
}

TEST(LauncherWins, TheMeshAndTheGlobalBatchHoldWhereItHasNone) {
  const RunOptions options{.global_batch = 10, .mesh = {{"dp", -1}, {"tp", 2}}};
  EXPECT_EQ(to_string(mesh_of(options, {}, 4)), "dp=2,tp=2");
  EXPECT_THAT(batch_shares_of(options, {}, 4), ElementsAre(3, 3, 2, 2));
  const RankDevice placed = placed_by_a_launcher();
  EXPECT_EQ(mesh_of(options, placed, 4), placed.mesh);
  EXPECT_EQ(batch_shares_of(options, placed, 4), placed.batch_shares);
  EXPECT_THAT(batch_shares_of({}, {}, 4), IsEmpty());
  EXPECT_THROW(mesh_of(options, {}, 3), Error);
  EXPECT_THROW(batch_shares_of({.global_batch = 3}, {}, 4), Error);
}

}  // namespace
}  // namespace muster::testing
