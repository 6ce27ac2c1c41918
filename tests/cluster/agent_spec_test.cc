#include "muster/cluster/agent_spec.h"

#include <gmock/gmock.h>
#include <signal.h>

namespace muster {
namespace {

TEST(AgentSpec, IsReadBackAsItWas) {
  AgentSpec spec;
  spec.launch.argv = {"./train", "--lr", "0.1", "a \"b\"\n", "\xff\xfe", "caf\xc3\xa9"};
  spec.launch.more_programs = {{.argv = {"./worker"}, .num_ranks = 3, .role = "w"}};
  spec.launch.request.nproc_per_node = 4;
  spec.launch.request.gpus = "0-3";
  spec.launch.request.numa_binding = NumaBinding::socket;
  spec.launch.stop_signals = {SIGTERM};
  spec.launch.stopped_timeout = std::chrono::seconds(7);
  spec.launch.extra_env = {{"MINE", "\xe9"}};
  spec.launch.local_ranks_filter = {0, 2};
  spec.launch.failure_policy = FailurePolicy::replace;
  spec.launch.rejoin_within = std::chrono::milliseconds(1'500);
  spec.cluster = {.min_hosts = 2,
                  .max_hosts = 5,
                  .node_rank = 3,
                  .endpoint = "10.0.0.1:4711",
                  .host_name = "b"};
  spec.cluster.secret = Secret::make();
  spec.environment = {{"NCCL_DEBUG", "INFO"}};
  spec.folder = "/work/\x80";
  const std::string line = to_line(spec);
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line";
  const AgentSpec read = agent_spec_from(line);
  EXPECT_EQ(to_line(read), line);
  EXPECT_EQ(read.launch.argv, spec.launch.argv);
  EXPECT_EQ(read.launch.extra_env, spec.launch.extra_env);
  EXPECT_EQ(read.folder, spec.folder);
  EXPECT_EQ(read.cluster.secret.bytes(), spec.cluster.secret.bytes());
  EXPECT_TRUE(read.cluster.remote);
  EXPECT_EQ(read.launch.failure_policy, FailurePolicy::replace);
  EXPECT_EQ(read.launch.rejoin_within, spec.launch.rejoin_within);
}

TEST(AgentSpec, WhatIsNoneIsAnError) {
  for (const char* line : {"", "{}", "hello", R"({"schema": "muster.agent/1"})"})
    EXPECT_THROW(agent_spec_from(line), Error);
}

TEST(EnvironmentToSend, IsWhatSteersProgramsAndNoSecrets) {
  const Environment sent = environment_to_send({{"PATH", "/bin"},
                                                {"NCCL_DEBUG", "INFO"},
                                                {"LC_ALL", "C"},
                                                {"CUDA_LAUNCH_BLOCKING", "1"},
                                                {"MUSTER_LOG_LEVEL", "debug"},
                                                {"CUDA_VISIBLE_DEVICES", "0"},
                                                {"MUSTER_SECRET_FILE", "/s"},
                                                {"MUSTER_SECRET_FD", "9"},
                                                {"MUSTER_STORE", "unix:/store"},
                                                {"MUSTER_AGENT_STORE", "unix:/agent"},
                                                {"MUSTER_HOST_ID", "here"},
                                                {"MUSTER_LEASE_FD", "7"},
                                                {"MUSTER_RUNTIME_DIR", "/run/me"},
                                                {"MUSTER_TTY", "1"},
                                                {"AWS_SECRET_ACCESS_KEY", "x"},
                                                {"HOME", "/home/me"},
                                                {"BASH_FUNC_x%%", "() { :; }"},
                                                {"NCCL_x;y", "1"},
                                                {"LD_PRELOAD", "evil.so"}});
  EXPECT_THAT(sent,
              testing::ElementsAre(testing::Pair("CUDA_LAUNCH_BLOCKING", "1"),
                                   testing::Pair("LC_ALL", "C"),
                                   testing::Pair("MUSTER_LOG_LEVEL", "debug"),
                                   testing::Pair("NCCL_DEBUG", "INFO"),
                                   testing::Pair("PATH", "/bin")));
}

}  // namespace
}  // namespace muster
