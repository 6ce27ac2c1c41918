#include "muster/cluster/agent_task.h"

#include <gmock/gmock.h>
#include <signal.h>

namespace muster {
namespace {

TEST(AgentTask, IsReadBackAsItWas) {
  AgentTask task;
  task.launch.argv = {"./train", "--lr", "0.1", "a \"b\"\n", "\xff\xfe", "caf\xc3\xa9"};
  task.launch.more_programs = {{.argv = {"./worker"}, .num_ranks = 3, .role = "w"}};
  task.launch.request.nproc_per_node = 4;
  task.launch.request.gpus = "0-3";
  task.launch.request.numa_binding = NumaBinding::socket;
  task.launch.stop_signals = {SIGTERM};
  task.launch.stopped_timeout = std::chrono::seconds(7);
  task.launch.extra_env = {{"MINE", "\xe9"}};
  task.launch.local_ranks_filter = {0, 2};
  task.launch.replaces = true;
  task.launch.rejoin_within = std::chrono::milliseconds(1'500);
  task.cluster = {
      .min_hosts = 2, .max_hosts = 5, .node_rank = 3, .endpoint = "10.0.0.1:4711", .host_name = "b"};
  task.cluster.secret = Secret::make();
  task.environment = {{"NCCL_DEBUG", "INFO"}};
  task.folder = "/work/\x80";
  const std::string line = to_line(task);
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line";
  const AgentTask read = agent_task_from(line);
  EXPECT_EQ(to_line(read), line);
  EXPECT_EQ(read.launch.argv, task.launch.argv);
  EXPECT_EQ(read.launch.extra_env, task.launch.extra_env);
  EXPECT_EQ(read.folder, task.folder);
  EXPECT_EQ(read.cluster.secret.bytes(), task.cluster.secret.bytes());
  EXPECT_TRUE(read.cluster.remote);
  EXPECT_TRUE(read.launch.replaces);
  EXPECT_EQ(read.launch.rejoin_within, task.launch.rejoin_within);
}

TEST(AgentTask, WhatIsNoneIsAnError) {
  for (const char* line : {"", "{}", "hello", R"({"schema": "muster.agent/1"})"})
    EXPECT_THROW(agent_task_from(line), Error);
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
                                                {"AWS_SECRET_ACCESS_KEY", "x"},
                                                {"HOME", "/home/me"},
                                                {"BASH_FUNC_x%%", "() { :; }"},
                                                {"NCCL_x;y", "1"},
                                                {"LD_PRELOAD", "evil.so"}});
  EXPECT_THAT(sent,
              testing::ElementsAre(testing::Pair("CUDA_LAUNCH_BLOCKING", "1"), testing::Pair("LC_ALL", "C"),
                                   testing::Pair("MUSTER_LOG_LEVEL", "debug"),
                                   testing::Pair("NCCL_DEBUG", "INFO"), testing::Pair("PATH", "/bin")));
}

}  // namespace
}  // namespace muster
