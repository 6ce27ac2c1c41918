#include "muster/launch/rank_spec.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/rank_env_table.h"
#include "muster/base/strings.h"
#include "muster/placement/plan_part.h"

namespace muster {
namespace {

using testing::HasSubstr;

RankPlan cpu_rank(int rank) {
  RankPlan plan;
  plan.rank = plan.local_rank = rank;
  plan.host = "box";
  plan.device.cpu_slot = rank;
  return plan;
}

RankPlan gpu_rank(int rank, const std::string& uuid, int ordinal) {
  RankPlan plan = cpu_rank(rank);
  plan.device.kind = DeviceAssignment::Kind::gpu;
  plan.device.uuid.value = uuid;
  plan.device.ordinal.value = ordinal;
  return plan;
}

Plan cpu_plan(int ranks) {
  Plan plan;
  for (int rank = 0; rank < ranks; ++rank)
    plan.ranks.push_back(cpu_rank(rank));
  return plan;
}

JobFacts job() {
  JobFacts facts;
  facts.run_id = "job1";
  facts.run_dir = "/runs/job1";
  facts.work_dir = "/runs/job1";
  facts.log_dir = "/runs/job1/logs";
  facts.plan_path = "/runs/job1/plan.json";
  facts.master_addr = "localhost";
  facts.master_port = 29501;
  facts.store = "tcp://127.0.0.1:4711";
  facts.secret_fd = 9;
  facts.cores = 8;
  facts.environment = {{"HOME", "/home/me"}};
  return facts;
}

LaunchOptions options() {
  LaunchOptions launch;
  launch.argv = {"train", "--lr", "0.1"};
  launch.max_restarts = 3;
  return launch;
}

TEST(RankSpec, WholeContractOfOneRank) {
  JobFacts facts = job();
  facts.restart_count = 1;  // the other time, a host had joined
  const auto specs = make_rank_specs(cpu_plan(4), options(), facts, 2);
  ASSERT_EQ(specs.size(), 4U);
  EXPECT_EQ(specs[3].argv, options().argv);
  const Environment expected = {
      {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"HOME", "/home/me"},
      {"LOCAL_RANK", "3"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"MASTER_ADDR", "localhost"},
      {"MASTER_PORT", "29501"},
      {"MUSTER_ATTEMPT", "2"},
      {"MUSTER_BACKEND", "auto"},
      {"MUSTER_CARD", "/runs/job1/logs/2/3.error.json"},
      {"MUSTER_DEVICE", "cpu:3"},
      {"MUSTER_LOCAL_RANK", "3"},
      {"MUSTER_ON_FAILURE", "end"},
      {"MUSTER_PLAN", "/runs/job1/plan.json"},
      {"MUSTER_RUN_DIR", "/runs/job1"},
      {"MUSTER_SECRET_FD", "9"},
      {"MUSTER_STORE", "tcp://127.0.0.1:4711"},
      {"OMP_NUM_THREADS", "2"},
      {"PYTHONFAULTHANDLER", "1"},
      {"RANK", "3"},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", "3"},
      {"ROLE_WORLD_SIZE", "4"},
      {"TORCHELASTIC_ERROR_FILE", "/runs/job1/logs/2/3.error.json"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RESTART_COUNT", "1"},
      {"TORCHELASTIC_RUN_ID", "job1"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"WORLD_SIZE", "4"},
  };
  EXPECT_EQ(specs[3].environment, expected);
}

// A job of several hosts that tells its ranks all that a launcher ever tells them.
Environment all_that_a_rank_is_told() {
  LaunchOptions launch = options();
  launch.failure_policy = FailurePolicy::replace;
  Plan plan;
  plan.ranks = {gpu_rank(0, "GPU-a", 0), gpu_rank(1, "GPU-b", 0)};
  plan.ranks[1].host_index = 1;
  JobFacts facts = job();
  facts.environment = {};
  facts.mark = "mark";
  facts.launch = "launch";
  facts.agent_store = "unix:/store";
  facts.interface = "eth1";
  facts.leases = "7,8";
  facts.on_terminal = true;
  Environment told = make_rank_specs(plan, launch, facts, 2)[0].environment;
  plan.simulated = true;
  told.merge(make_rank_specs(plan, launch, facts, 2)[0].environment);
  return told;
}

// A host of several gets the ranks of the plan that are its own.
TEST(RankSpec, APartOfAPlanGivesTheSameRanksAsTheWhole) {
  Plan whole = cpu_plan(6);
  for (int rank : {3, 4, 5}) {
    whole.ranks[rank].host_index = 2;  // host 1 has none
    whole.ranks[rank].local_rank = rank - 3;
  }
  LaunchOptions with_roles = options();
  with_roles.more_programs = {{.argv = {"serve"}, .num_ranks = 2, .role = "server"}};
  JobFacts facts = job();
  facts.more_programs = {"/bin/serve"};
  facts.host_index = 2;
  Plan part = part_without_ranks(whole);
  part.ranks = {whole.ranks.begin() + 3, whole.ranks.end()};
  part.part->first_rank = 3;
  part.part->hosts_before = 1;
  const auto of_whole = make_rank_specs(whole, with_roles, facts, 0);
  const auto of_part = make_rank_specs(part, with_roles, facts, 0);
  ASSERT_EQ(of_whole.size(), 3U);
  ASSERT_EQ(of_part.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(of_part[i].rank, 3 + i);
    EXPECT_EQ(of_part[i].argv, of_whole[i].argv);
    EXPECT_EQ(of_part[i].prefix, of_whole[i].prefix);
    EXPECT_EQ(of_part[i].environment, of_whole[i].environment);
  }
}

TEST(RankSpec, WhatALauncherTellsARankIsErasedForAJobInsideIt) {
  const std::vector<std::string> passed_on = {"CUDA_DEVICE_ORDER",
                                              "CUDA_VISIBLE_DEVICES",
                                              "GLOO_SOCKET_IFNAME",
                                              "MUSTER_BACKEND",
                                              "NCCL_SOCKET_IFNAME",
                                              "OMP_NUM_THREADS",
                                              "PYTHONFAULTHANDLER",
                                              "TORCH_NCCL_ASYNC_ERROR_HANDLING"};
  const Environment told = all_that_a_rank_is_told();
  ASSERT_TRUE(told.contains("MUSTER_AGENT_STORE") && told.contains("MUSTER_SIMULATED"));
  for (auto* const erase : {&erase_outer_rank, &erase_outer_task}) {
    Environment left = told;
    erase(left);
    std::vector<std::string> names;
    for (const auto& [name, value] : left)
      names.push_back(name);
    EXPECT_EQ(names, passed_on);
  }
}

TEST(RankSpec, TheTableHasAllThatALauncherTellsARank) {
  for (const auto& [name, value] : all_that_a_rank_is_told()) {
    EXPECT_TRUE(std::ranges::any_of(rank_variables(), [&](const RankVariable& variable) {
      return variable.name == name;
    })) << name;
  }
}

TEST(RankSpec, AJobInsideARankHasItsOwnFailurePolicy) {
  JobFacts facts = job();
  facts.environment = all_that_a_rank_is_told();
  EXPECT_EQ(facts.environment.at("MUSTER_ON_FAILURE"), "replace");
  const Environment inner = make_rank_specs(cpu_plan(1), options(), facts, 0)[0].environment;
  EXPECT_EQ(inner.at("MUSTER_ON_FAILURE"), "end");
  EXPECT_FALSE(inner.contains("MUSTER_AGENT_STORE"));
}

TEST(RankSpec, KeepsWhatTheUserSet) {
  JobFacts facts = job();
  facts.environment = {{"OMP_NUM_THREADS", "5"},
                       {"MUSTER_BACKEND", "gloo"},
                       {"RANK", "77"},
                       {"MUSTER_SIMULATED", "1"},
                       {"MUSTER_LEASE_FD", "4"},
                       {"MUSTER_TTY", "1"}};
  const Environment variables = make_rank_specs(cpu_plan(1), options(), facts, 0)[0].environment;
  EXPECT_EQ(variables.at("OMP_NUM_THREADS"), "5");
  EXPECT_EQ(variables.at("MUSTER_BACKEND"), "gloo");
  EXPECT_EQ(variables.at("RANK"), "0");
  EXPECT_EQ(variables.count("MUSTER_SIMULATED"), 0U) << "an outer job's variable";
  EXPECT_EQ(variables.count("MUSTER_LEASE_FD"), 0U);
  EXPECT_EQ(variables.count("MUSTER_TTY"), 0U) << "it speaks of an outer job's terminal";
  facts.on_terminal = true;
  EXPECT_EQ(make_rank_specs(cpu_plan(1), options(), facts, 0)[0].environment.at("MUSTER_TTY"), "1");
}

TEST(RankSpec, RanksWhoseStandardErrorHasAFileSayTheirErrorsThere) {
  LaunchOptions teed = options();
  teed.tee = "0:2";
  const auto specs = make_rank_specs(cpu_plan(2), teed, job(), 0);
  EXPECT_EQ(specs[0].environment.count("MUSTER_CARD"), 0U);
  EXPECT_EQ(specs[1].environment.at("MUSTER_CARD"), specs[1].error_file);
}

TEST(RankSpec, RanksOfSeveralHostsTalkOverTheInterfaceToTheMaster) {
  Plan plan = cpu_plan(2);
  plan.ranks[1].local_rank = 0;
  plan.ranks[1].host_index = 1;
  JobFacts facts = job();
  facts.interface = "eth1";
  EXPECT_EQ(
      make_rank_specs(cpu_plan(2), options(), facts, 0)[0].environment.count("GLOO_SOCKET_IFNAME"),
      0U)
      << "one host: loopback will do";
  Environment variables = make_rank_specs(plan, options(), facts, 0)[0].environment;
  EXPECT_EQ(variables.at("GLOO_SOCKET_IFNAME"), "eth1");
  EXPECT_EQ(variables.at("NCCL_SOCKET_IFNAME"), "=eth1");
  facts.environment = {{"GLOO_SOCKET_IFNAME", "ib0"}, {"NCCL_SOCKET_IFNAME", "ib"}};
  variables = make_rank_specs(plan, options(), facts, 0)[0].environment;
  EXPECT_EQ(variables.at("GLOO_SOCKET_IFNAME"), "ib0");
  EXPECT_EQ(variables.at("NCCL_SOCKET_IFNAME"), "ib");
}

TEST(RankSpec, AtLeastOneThread) {
  EXPECT_EQ(make_rank_specs(cpu_plan(64), options(), job(), 0)[5].environment.at("OMP_NUM_THREADS"),
            "1");
}

TEST(RankSpec, ShowsTheJobsGpusInLocalRankOrder) {
  Plan plan;
  plan.ranks = {gpu_rank(0, "GPU-b", 0), gpu_rank(1, "GPU-a", 1)};
  const auto specs = make_rank_specs(plan, options(), job(), 0);
  EXPECT_EQ(specs[1].environment.at("CUDA_VISIBLE_DEVICES"), "GPU-b,GPU-a");
  EXPECT_EQ(specs[1].environment.at("LOCAL_RANK"), "1");
  EXPECT_EQ(specs[1].environment.at("MUSTER_DEVICE"), "GPU-a");
}

TEST(RankSpec, OwnGpuIsOrdinalZeroForScriptsToo) {
  Plan plan;
  plan.visibility = Visibility::own;
  plan.ranks = {gpu_rank(0, "GPU-b", 0), gpu_rank(1, "GPU-a", 0)};
  const Environment variables = make_rank_specs(plan, options(), job(), 0)[1].environment;
  EXPECT_EQ(variables.at("CUDA_VISIBLE_DEVICES"), "GPU-a");
  EXPECT_EQ(variables.at("LOCAL_RANK"), "0");
  EXPECT_EQ(variables.at("MUSTER_LOCAL_RANK"), "1");
}

TEST(RankSpec, CpuRankBesideGpuRanksSeesNoGpu) {
  Plan plan = cpu_plan(2);
  EXPECT_EQ(make_rank_specs(plan, options(), job(), 0)[1].environment.count("CUDA_VISIBLE_DEVICES"),
            0U);
  plan.ranks[0] = gpu_rank(0, "GPU-b", 0);
  EXPECT_EQ(make_rank_specs(plan, options(), job(), 0)[0].environment.at("CUDA_VISIBLE_DEVICES"),
            "GPU-b");
  EXPECT_EQ(make_rank_specs(plan, options(), job(), 0)[1].environment.at("CUDA_VISIBLE_DEVICES"),
            "");
}

TEST(RankSpec, SimulatedSetsNoCudaVariable) {
  Plan plan;
  plan.simulated = true;
  plan.ranks = {gpu_rank(0, "GPU-b", 0)};
  const Environment variables = make_rank_specs(plan, options(), job(), 0)[0].environment;
  EXPECT_EQ(variables.at("MUSTER_SIMULATED"), "1");
  EXPECT_EQ(variables.count("CUDA_VISIBLE_DEVICES") + variables.count("CUDA_DEVICE_ORDER"), 0U);
}

TEST(RankSpec, VirtualLocalRank) {
  LaunchOptions launch = options();
  launch.virtual_local_rank = true;
  const Environment variables = make_rank_specs(cpu_plan(2), launch, job(), 0)[1].environment;
  EXPECT_EQ(variables.at("LOCAL_RANK"), "0");
  EXPECT_EQ(variables.at("MUSTER_LOCAL_RANK"), "1");
}

TEST(RankSpec, Streams) {
  LaunchOptions launch = options();
  launch.redirects = "0:3";
  launch.tee = "1:1";
  launch.local_ranks_filter = {1, 2};
  const auto specs = make_rank_specs(cpu_plan(4), launch, job(), 0);
  EXPECT_FALSE(specs[0].out.console);
  EXPECT_EQ(specs[0].err.file, "/runs/job1/logs/0/0.err");
  EXPECT_TRUE(specs[1].out.console);
  EXPECT_EQ(specs[1].out.file, "/runs/job1/logs/0/1.out");
  EXPECT_EQ(specs[1].err.file, "");
  EXPECT_TRUE(specs[2].err.console);
  EXPECT_FALSE(specs[3].out.console) << "filtered out";
}

TEST(RankSpec, Prefixes) {
  EXPECT_EQ(make_rank_specs(cpu_plan(1), options(), job(), 0)[0].prefix, "");
  EXPECT_EQ(make_rank_specs(cpu_plan(2), options(), job(), 0)[1].prefix, "[1] ");
  LaunchOptions launch = options();
  launch.line_prefix = "${hostname}:${rank}/$local_rank $$ ${other} ${role_name}: ";
  EXPECT_EQ(make_rank_specs(cpu_plan(2), launch, job(), 0)[1].prefix,
            "box:1/1 $ ${other} default: ");
}

TEST(StreamBits, TorchrunsForms) {
  EXPECT_EQ(stream_bits("3", 5, "--tee"), 3);
  EXPECT_EQ(stream_bits("0:1,1:2", 1, "--tee"), 2);
  EXPECT_EQ(stream_bits("0:1,1:2", 2, "--tee"), 0);
  for (const char* bad : {"", "4", "x", "0:", "0:4", "0:1,", ":1", "0:1:2", "-1:2", "0:1,0:2"}) {
    EXPECT_THROW(stream_bits(bad, 0, "--tee"), Error) << bad;
  }
}

}  // namespace
}  // namespace muster
