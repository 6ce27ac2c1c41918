#include "muster/base/rank_env.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "muster/base/error.h"

extern char** environ;

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Every test starts from an empty environment and leaves its process's as it was.
class RankEnvTest : public testing::Test {
 protected:
  RankEnvTest() {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const size_t equals = text.find('=');
      before_[text.substr(0, equals)] = text.substr(equals + 1);
    }
    ::clearenv();
  }
  ~RankEnvTest() override {
    ::clearenv();
    set(before_);
  }

  static void set(const Environment& vars) {
    for (const auto& [name, value] : vars)
      ::setenv(name.c_str(), value.c_str(), 1);
  }
  static std::string refusal(const Environment& vars) {
    ::clearenv();
    set(vars);
    try {
      rank_env_from_environment();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.message();
    }
    ADD_FAILURE() << "expected an Error";
    return {};
  }

 private:
  Environment before_;
};

RankEnv full_env() {
  RankEnv env;
  env.source = "muster";
  env.rank = 5;
  env.world_size = 8;
  env.local_rank = 1;
  env.local_world_size = 4;
  env.group_rank = 1;
  env.group_world_size = 2;
  env.role_name = "trainer";
  env.role_rank = 5;
  env.role_world_size = 8;
  env.master_addr = "node-0";
  env.master_port = 29501;
  env.restart_count = 1;
  env.attempt = 4;
  env.max_restarts = 3;
  env.run_id = "run-7";
  env.error_file = "/tmp/error.json";
  env.device = "GPU-0c5e";
  env.plan = "/runs/7/plan.json";
  env.store = "tcp://127.0.0.1:4000";
  env.secret_fd = 9;
  env.host_id = "host";
  env.run_dir = "/runs/7";
  env.backend = "gloo";
  env.simulated = true;
  return env;
}

TEST_F(RankEnvTest, WhatALauncherWritesARankReads) {
  const RankEnv written = full_env();
  set(to_environment(written));
  const auto read = rank_env_from_environment();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->source, written.source);
  EXPECT_EQ(read->rank, written.rank);
  EXPECT_EQ(read->world_size, written.world_size);
  EXPECT_EQ(read->local_rank, written.local_rank);
  EXPECT_EQ(read->local_world_size, written.local_world_size);
  EXPECT_EQ(read->group_rank, written.group_rank);
  EXPECT_EQ(read->group_world_size, written.group_world_size);
  EXPECT_EQ(read->role_name, written.role_name);
  EXPECT_EQ(read->role_rank, written.role_rank);
  EXPECT_EQ(read->role_world_size, written.role_world_size);
  EXPECT_EQ(read->master_addr, written.master_addr);
  EXPECT_EQ(read->master_port, written.master_port);
  EXPECT_EQ(read->restart_count, written.restart_count);
  EXPECT_EQ(read->attempt, written.attempt);
  EXPECT_EQ(read->max_restarts, written.max_restarts);
  EXPECT_EQ(read->run_id, written.run_id);
  EXPECT_EQ(read->error_file, written.error_file);
  EXPECT_EQ(read->use_agent_store, written.use_agent_store);
  EXPECT_EQ(read->device, written.device);
  EXPECT_EQ(read->plan, written.plan);
  EXPECT_EQ(read->store, written.store);
  EXPECT_EQ(read->secret_fd, written.secret_fd);
  EXPECT_EQ(read->host_id, written.host_id);
  EXPECT_EQ(read->run_dir, written.run_dir);
  EXPECT_EQ(read->backend, written.backend);
  EXPECT_EQ(read->simulated, written.simulated);
  EXPECT_EQ(to_environment(*read), to_environment(written));
}

TEST_F(RankEnvTest, WritesTorchrunsWholeContract) {
  const Environment vars = to_environment(full_env());
  for (const char* name : {"RANK",
                           "LOCAL_RANK",
                           "WORLD_SIZE",
                           "LOCAL_WORLD_SIZE",
                           "GROUP_RANK",
                           "GROUP_WORLD_SIZE",
                           "ROLE_NAME",
                           "ROLE_RANK",
                           "ROLE_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_RESTART_COUNT",
                           "TORCHELASTIC_MAX_RESTARTS",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_ERROR_FILE",
                           "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCH_NCCL_ASYNC_ERROR_HANDLING"}) {
    EXPECT_TRUE(vars.contains(name)) << name;
  }
  EXPECT_EQ(vars.at("TORCHELASTIC_USE_AGENT_STORE"), "False");
  EXPECT_EQ(vars.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
  EXPECT_EQ(vars.at("MUSTER_ATTEMPT"), "4");
}

TEST_F(RankEnvTest, WritesNothingThatIsNotTold) {
  const Environment vars = to_environment(RankEnv{});
  for (const char* name :
       {"MUSTER_DEVICE", "MUSTER_PLAN", "MUSTER_STORE", "MUSTER_SECRET_FD", "MUSTER_SIMULATED"})
    EXPECT_FALSE(vars.contains(name)) << name;
}

// A process that becomes rank 0 of two, and keeps what it is on its host.
TEST_F(RankEnvTest, AnotherGenerationChangesNumbersAndAddresses) {
  RankEnv before;
  before.rank = 2;
  before.world_size = 4;
  before.local_rank = 1;
  before.device = "cpu:1";
  before.store = "tcp://10.0.0.1:1";
  RankEnv after = before;
  after.rank = 0;
  after.world_size = 2;
  after.attempt = 3;
  after.store = "tcp://10.0.0.2:1";
  after.device = "another's";
  const Environment told = generation_variables(to_environment(after));
  EXPECT_FALSE(told.contains("MUSTER_DEVICE"));
  const RankEnv now = with_generation(before, told);
  EXPECT_EQ(now.rank, 0);
  EXPECT_EQ(now.world_size, 2);
  EXPECT_EQ(now.attempt, 3);
  EXPECT_EQ(now.store, "tcp://10.0.0.2:1");
  EXPECT_EQ(now.local_rank, 1);
  EXPECT_EQ(now.device, "cpu:1");
  EXPECT_EQ(with_generation(before, {}).rank, 2) << "what is not told stays";
  EXPECT_THROW(with_generation(before, {{"RANK", "two"}}), Error);
}

TEST_F(RankEnvTest, StartedAloneThereIsNothing) {
  EXPECT_FALSE(rank_env_from_environment());
  set({{"RANK", ""}, {"WORLD_SIZE", ""}});
  EXPECT_FALSE(rank_env_from_environment());
}

struct SourceCase {
  std::string name;
  Environment vars;
  int rank, world_size, local_rank, local_world_size;
};

class RankEnvSources : public RankEnvTest, public testing::WithParamInterface<SourceCase> {};

TEST_P(RankEnvSources, AreRead) {
  set(GetParam().vars);
  const auto env = rank_env_from_environment();
  ASSERT_TRUE(env);
  EXPECT_EQ(env->source, GetParam().name);
  EXPECT_EQ(env->rank, GetParam().rank);
  EXPECT_EQ(env->world_size, GetParam().world_size);
  EXPECT_EQ(env->local_rank, GetParam().local_rank);
  EXPECT_EQ(env->local_world_size, GetParam().local_world_size);
}

INSTANTIATE_TEST_SUITE_P(
    Launchers,
    RankEnvSources,
    testing::Values(
        SourceCase{
            "torchrun",
            {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}},
            3,
            4,
            1,
            2},
        SourceCase{"Open MPI",
                   {{"OMPI_COMM_WORLD_RANK", "3"},
                    {"OMPI_COMM_WORLD_SIZE", "4"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                   3,
                   4,
                   1,
                   2},
        SourceCase{"PMI",
                   {{"PMI_RANK", "3"},
                    {"PMI_SIZE", "4"},
                    {"MPI_LOCALRANKID", "1"},
                    {"MPI_LOCALNRANKS", "2"}},
                   3,
                   4,
                   1,
                   2},
        SourceCase{"Slurm",
                   {{"SLURM_PROCID", "3"},
                    {"SLURM_STEP_NUM_TASKS", "4"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_LOCALID", "1"}},
                   3,
                   4,
                   1,
                   2},
        SourceCase{
            "Kubernetes", {{"JOB_COMPLETION_INDEX", "0"}, {"JOB_COMPLETIONS", "1"}}, 0, 1, 0, 1}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::erase(name, ' ');
      return name;
    });

TEST_F(RankEnvTest, TheFirstSourceWins) {
  set({{"RANK", "0"},
       {"WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "4"},
       {"PMI_RANK", "2"},
       {"PMI_SIZE", "8"}});
  EXPECT_EQ(rank_env_from_environment()->source, "torchrun");
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
  EXPECT_EQ(rank_env_from_environment()->source, "Open MPI");
}

TEST_F(RankEnvTest, ABatchScriptIsNoRank) {
  set({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
  EXPECT_FALSE(rank_env_from_environment());
  set({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_ID", "batch"}});
  EXPECT_FALSE(rank_env_from_environment());
}

TEST_F(RankEnvTest, AnInteractiveShellOfSlurmIsNoRank) {
  const Environment shell = {
      {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}};
  set(shell);
  set({{"SLURM_STEP_ID", "4294967290"}});
  EXPECT_FALSE(inside_srun_step()) << "salloc's shell";
  EXPECT_FALSE(rank_env_from_environment());
  set({{"SLURM_STEP_ID", "0"}});
  EXPECT_TRUE(rank_env_from_environment()) << "srun -n1";
  set({{"SLURM_PTY_PORT", "34889"}});
  EXPECT_FALSE(rank_env_from_environment()) << "srun --pty bash";
  set({{"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_TRUE(rank_env_from_environment()) << "srun -n2 from such a shell";
}

TEST_F(RankEnvTest, WhereNothingTellsTheLocalRankItIsNotGuessed) {
  set({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  const auto env = rank_env_from_environment();
  EXPECT_FALSE(env->local_rank_told);
  EXPECT_EQ(env->local_rank, 0);
  set({{"LOCAL_RANK", "0"}});
  EXPECT_TRUE(rank_env_from_environment()->local_rank_told);
  ::clearenv();
  set({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_TRUE(rank_env_from_environment()->local_rank_told) << "there is one place";
  ::clearenv();
  set({{"JOB_COMPLETION_INDEX", "1"}, {"JOB_COMPLETIONS", "2"}});
  EXPECT_FALSE(rank_env_from_environment()->local_rank_told);
  set({{"MUSTER_LOCAL_RANK", "1"}});
  EXPECT_TRUE(rank_env_from_environment()->local_rank_told);
}

TEST_F(RankEnvTest, AHalfSetForeignPairIsNoSource) {
  set({{"PMI_RANK", "0"}});
  EXPECT_FALSE(rank_env_from_environment());
}

TEST_F(RankEnvTest, TheTrueLocalRankIsReadBehindAVirtualOne) {
  Environment vars = to_environment(full_env());
  vars["LOCAL_RANK"] = "0";
  set(vars);
  EXPECT_EQ(rank_env_from_environment()->local_rank, 1);
}

TEST_F(RankEnvTest, ContradictionsAreRefusedWithBothValues) {
  EXPECT_THAT(refusal({{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
              AllOf(HasSubstr("RANK=4"), HasSubstr("WORLD_SIZE=4")));
  EXPECT_THAT(refusal({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), HasSubstr("RANK=-1"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(refusal({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not"));
  EXPECT_THAT(
      refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
      AllOf(HasSubstr("LOCAL_RANK=2"), HasSubstr("LOCAL_WORLD_SIZE=2")));
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "9"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("Open MPI"), HasSubstr("OMPI_COMM_WORLD_RANK=9")));
}

TEST_F(RankEnvTest, WhatIsNoNumberIsNamed) {
  EXPECT_THAT(refusal({{"RANK", "one"}, {"WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("RANK"), HasSubstr("'one'")));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "29500x"}}),
              HasSubstr("MASTER_PORT"));
}

TEST_F(RankEnvTest, WhatIsNegativeOrTooLargeIsNamed) {
  const Environment step = {{"SLURM_STEP_ID", "0"},
                            {"SLURM_PROCID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "2"},
                            {"SLURM_STEP_NUM_NODES", "2"},
                            {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  for (const char* const name : {"SLURM_PROCID",
                                 "SLURM_STEP_NUM_TASKS",
                                 "SLURM_LOCALID",
                                 "SLURM_NODEID",
                                 "SLURM_STEP_NUM_NODES",
                                 "MASTER_PORT"}) {
    for (const char* const value : {"-1", "4294967297"}) {
      Environment wrong = step;
      wrong[name] = value;
      EXPECT_THAT(refusal(wrong),
                  AllOf(HasSubstr("expected a number from 0 to 2147483647, got "),
                        HasSubstr(cat(name, "=", value))));
    }
  }
  for (const char* const tasks : {"1(x4294967297)", "4294967297", "-1", "1(x", "1(x2", "2,x"}) {
    Environment wrong = step;
    wrong["SLURM_NODEID"] = "1";
    wrong["SLURM_STEP_TASKS_PER_NODE"] = tasks;
    EXPECT_THAT(refusal(wrong), HasSubstr(cat("SLURM_STEP_TASKS_PER_NODE='", tasks, "'")));
  }
}

}  // namespace
}  // namespace muster
