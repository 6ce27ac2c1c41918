#include "muster/launch/check_launch.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <functional>
#include <string>

#include "muster/base/error.h"
#include "muster/launch/lease_plan.h"
#include "muster/launch/score_file.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

std::string refusal_of_launch(const std::function<void(LaunchOptions&)>& change) {
  LaunchOptions options;
  options.argv = {"program"};
  change(options);
  try {
    check_launch(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "accepted";
}

TEST(CheckLaunch, NothingIsWrongWithTheDefaults) {
  EXPECT_EQ(refusal_of_launch([](LaunchOptions&) {}), "accepted");
  EXPECT_EQ(refusal_of_launch([](LaunchOptions& o) { o.wait = kWaitForever; }), "accepted");
  EXPECT_EQ(refusal_of_launch([](LaunchOptions& o) { o.plan = "plan.json"; }), "accepted");
  EXPECT_EQ(refusal_of_launch(
                [](LaunchOptions& o) { o.extra_env = {{"MUSTER_BACKEND", "gloo"}, {"a", ""}}; }),
            "accepted");
}

TEST(CheckLaunch, CountsTimesAndSignals) {
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.argv.clear(); }),
              HasSubstr("a program to run"));
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.max_restarts = -1; }),
              StartsWith("--max-restarts: expected 0 or more, got -1"));
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.cpu_slots = -2; }),
              StartsWith("--cpu-slots: "));
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.local_ranks_filter = {0, -1}; }),
              StartsWith("--local-ranks-filter: expected local ranks as in 0,1,2, got '-1'"));
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.stopped_timeout = milliseconds(0); }),
              StartsWith("--stopped-timeout: expected a time above 0"));
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.time_limit = milliseconds(-1); }),
              StartsWith("--timeout: expected a time above 0"));
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.shutdown_timeout = milliseconds(-1); }),
              StartsWith("--shutdown-timeout: expected a time of 0 or more"));
  EXPECT_THAT(
      refusal_of_launch([](LaunchOptions& o) { set_collective_timeout(milliseconds(0), o); }),
      StartsWith("--collective-timeout: expected a time above 0"));
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.wait = milliseconds(-1); }),
              StartsWith("--wait: expected a time of 0 or more"));
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) {
                o.wait = kWaitForever;
                o.lease = false;
              }),
              StartsWith("--wait: expected no --no-lease beside it"));
  for (const int number : {0, SIGKILL, SIGSTOP, 1000}) {
    EXPECT_THAT(refusal_of_launch([&](LaunchOptions& o) { o.stop_signals = {SIGTERM, number}; }),
                HasSubstr("--signals-to-handle: expected signals that a process can handle"));
  }
}

// As --map with more indices than ranks. Hosts may differ, and --surplus drop leaves ranks out.
TEST(CheckLaunch, EachSizeOfMemoryHasARank) {
  const auto refusal = [](const Request& request) -> std::string {
    try {
      check_sizes_have_ranks(request);
    } catch (const Error& error) {
      return error.message();
    }
    return "accepted";
  };
  Request request{.nproc_per_node = 2, .rank_memory_bytes = {1, 1, 1}};
  EXPECT_EQ(refusal(request),
            "--rank-memory: expected one size for each local rank, or fewer (2 ranks), got 3; "
            "leave the last ones out");
  request.surplus = Surplus::drop;
  EXPECT_EQ(refusal(request), "accepted");
  Request of_hosts{.nproc_per_node = 4, .hosts = {{"a", 1}, {"b", 3}}};
  of_hosts.rank_memory_bytes = {1, 1, 1};
  EXPECT_EQ(refusal(of_hosts), "accepted");
  of_hosts.rank_memory_bytes.push_back(1);
  EXPECT_THAT(refusal(of_hosts), HasSubstr("(3 ranks), got 4")) << "-n counts for no host";
  of_hosts.hosts.push_back({"c"});
  EXPECT_EQ(refusal(of_hosts), "accepted");
  EXPECT_EQ(refusal({.rank_memory_bytes = {1, 1, 1}}), "accepted") << "the devices decide";
}

TEST(CheckLaunch, VariablesOfTheRanks) {
  for (const char* name : {"", "1A", "A B"}) {
    EXPECT_THAT(refusal_of_launch([&](LaunchOptions& o) { o.extra_env = {{name, "x"}}; }),
                HasSubstr("--env: expected NAME=VALUE with a name of letters"));
  }
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.extra_env = {{"RANK", "7"}}; }),
              HasSubstr("no variable that muster sets for each rank, got 'RANK'"));
  EXPECT_THAT(refusal_of_launch([](LaunchOptions& o) { o.extra_env = {{"MUSTER_TRACE", "all"}}; }),
              StartsWith("--trace: expected no value, 1, operators or 0, got 'all'"));
  const ScopedEnv trace("MUSTER_TRACE", "some");
  EXPECT_THAT(refusal_of_launch([](LaunchOptions&) {}), StartsWith("MUSTER_TRACE: "));
}

// Each of these would have no effect beside a plan.
TEST(CheckLaunch, WhatAPlanHasDecidedIsRefusedBesideIt) {
  const auto beside = [](const std::function<void(Request&)>& change) {
    return refusal_of_launch([&](LaunchOptions& options) {
      options.plan = "plan.json";
      change(options.request);
    });
  };
  EXPECT_THAT(
      beside([](Request& r) { r.gpus = "0,1"; }),
      StartsWith("--plan: expected no --gpus beside it, got '0,1'; the plan says all that"));
  EXPECT_THAT(beside([](Request& r) { r.policy = "numa"; }), HasSubstr("no --policy"));
  EXPECT_THAT(beside([](Request& r) { r.map = {1, 0}; }),
              HasSubstr("no --map beside it, got '1,0'"));
  EXPECT_THAT(beside([](Request& r) {
                r.choose = [](const Host&, int) {
                  return std::vector<int>{};
                };
              }),
              HasSubstr("no Request::choose"));
  EXPECT_THAT(beside([](Request& r) { r.scores = {{"0", 1.0}}; }), HasSubstr("got '1 score'"));
  EXPECT_THAT(beside([](Request& r) { r.rank_memory_bytes = {uint64_t{1} << 30}; }),
              HasSubstr("no --rank-memory beside it, got '1.0 GiB'"));
  EXPECT_THAT(beside([](Request& r) { r.mesh = {{"dp", 2}, {"tp", 4}}; }),
              HasSubstr("no --mesh beside it, got 'dp=2,tp=4'"));
  EXPECT_THAT(beside([](Request& r) { r.hosts = {{.name = "a"}}; }), HasSubstr("no --hosts"));
  EXPECT_THAT(beside([](Request& r) { r.nproc_per_node = 3; }),
              HasSubstr("no --nproc-per-node beside it, got '3'"));
  EXPECT_THAT(beside([](Request& r) { r.cpu_only = true; }), HasSubstr("got 'cpu'"));
  EXPECT_THAT(beside([](Request& r) { r.gpus_per_rank = 2; }), HasSubstr("no --gpus-per-rank"));
  EXPECT_THAT(beside([](Request& r) { r.global_batch = 64; }), HasSubstr("no --global-batch"));
  EXPECT_THAT(beside([](Request& r) { r.numa_binding = NumaBinding::node; }),
              HasSubstr("no --numa-binding beside it, got 'node'"));
  EXPECT_THAT(beside([](Request& r) { r.surplus = Surplus::cpu; }), HasSubstr("no --surplus"));
  EXPECT_THAT(beside([](Request& r) { r.visibility = Visibility::own; }),
              HasSubstr("no --visibility"));
}

TEST(CheckLaunch, RestartsWhereNobodySaysHowMany) {
  LaunchOptions options;
  set_failure_policy(FailurePolicy::replace, std::nullopt, options);
  EXPECT_EQ(options.max_restarts, kReplacements);
  set_failure_policy(FailurePolicy::replace, 0, options);
  EXPECT_EQ(options.max_restarts, 0);
  set_failure_policy(FailurePolicy::end, std::nullopt, options);
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.failure_policy, FailurePolicy::end);
}

TEST(CheckLaunch, TheTimeOfCollectivesIsToldToTheRanks) {
  LaunchOptions options;
  set_collective_timeout(milliseconds(1500), options);
  EXPECT_EQ(options.extra_env.at("MUSTER_COLLECTIVE_TIMEOUT"), "1500ms");
  EXPECT_EQ(options.rejoin_within, milliseconds(1500));
  LaunchOptions inherited;
  const ScopedEnv told("MUSTER_COLLECTIVE_TIMEOUT", "2s");
  set_collective_timeout(std::nullopt, inherited);
  EXPECT_EQ(inherited.extra_env.size(), 0U);
  EXPECT_EQ(inherited.rejoin_within, milliseconds(2000));
}

TEST(ScoreFile, IsAnObjectOfNumbers) {
  const ScratchFolder folder;
  const auto scores = read_scores(folder.write("scores.json", R"({"0": 100, "A100": 90.5})"));
  EXPECT_EQ(scores, (std::map<std::string, double>{{"0", 100}, {"A100", 90.5}}));
  for (const auto& [text, got] :
       {std::pair("[1]", "array"), {R"({"0": "fast"})", "string for 0"}}) {
    try {
      read_scores(folder.write("wrong.json", text));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--scores: expected a JSON object of numbers"));
      EXPECT_THAT(error.what(), HasSubstr(got));
      EXPECT_THAT(error.what(), HasSubstr("; correct " + folder.path() + "/wrong.json"));
    }
  }
  const std::string slow = folder.write("slow.json", R"({"0": 3, "GPU-8f3c": -1})");
  try {
    read_scores(slow);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(),
              cat("--scores: expected a number above 0, got -1 for GPU-8f3c; correct ", slow));
  }
}

}  // namespace
}  // namespace muster
