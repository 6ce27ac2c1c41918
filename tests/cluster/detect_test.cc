#include "muster/cluster/detect.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <map>

#include "muster/base/error.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

// The variables of a cluster's launcher, for one test.
class Detect : public testing::Test {
 protected:
  void set(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) {
      ::setenv(name.c_str(), value.c_str(), 1);
      names_.push_back(name);
    }
  }
  void TearDown() override {
    for (const std::string& name : names_)
      ::unsetenv(name.c_str());
  }
  std::string refusal() {
    try {
      ClusterOptions options;
      return detect_cluster(options) ? "found" : "nothing";
    } catch (const Error& error) {
      return error.message();
    }
  }

  ScratchFolder folder_;

 private:
  std::vector<std::string> names_;
};

TEST_F(Detect, NothingWithoutALauncher) {
  EXPECT_EQ(refusal(), "nothing");
  EXPECT_EQ(node_rank_of_environment(), std::nullopt);
}

TEST_F(Detect, AnSrunStepWithOneTaskANode) {
  set({{"SLURM_JOB_ID", "42"},
       {"SLURM_STEP_ID", "0"},
       {"SLURM_PROCID", "1"},
       {"SLURM_STEP_NUM_TASKS", "3"},
       {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
       {"SLURM_NODEID", "1"},
       {"SLURM_LOCALID", "0"},
       {"SLURM_STEP_NUM_NODES", "3"},
       {"SLURM_SUBMIT_DIR", folder_.path()}});
  ClusterOptions options;
  ASSERT_TRUE(detect_cluster(options));
  EXPECT_EQ(options.max_hosts, 3);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.rendezvous_file, folder_.path() + "/.muster-srun-42.0.0-agents");
  EXPECT_FALSE(options.one_machine);
}

TEST_F(Detect, ABatchScriptIsNoStep) {
  set({{"SLURM_JOB_ID", "42"},
       {"SLURM_PROCID", "0"},
       {"SLURM_JOB_NUM_NODES", "3"},
       {"SLURM_NTASKS", "3"}});
  EXPECT_EQ(refusal(), "nothing");
}

TEST_F(Detect, SeveralAgentsOnAHostAreRefused) {
  set({{"SLURM_JOB_ID", "42"},
       {"SLURM_STEP_ID", "0"},
       {"SLURM_PROCID", "2"},
       {"SLURM_LOCALID", "0"},
       {"SLURM_NODEID", "1"},
       {"SLURM_STEP_NUM_TASKS", "4"},
       {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
       {"SLURM_STEP_NUM_NODES", "2"}});
  EXPECT_THAT(refusal(), HasSubstr("srun --ntasks-per-node=1"));
}

// mpirun inside a Slurm allocation: mpirun's word counts.
TEST_F(Detect, OpenMpiBeforeSlurm) {
  set({{"SLURM_JOB_ID", "42"},
       {"SLURM_STEP_ID", "0"},
       {"SLURM_PROCID", "0"},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_STEP_NUM_NODES", "2"},
       {"PMIX_NAMESPACE", "77"},
       {"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
       {"OMPI_MCA_initial_wdir", folder_.path()}});
  ClusterOptions options;
  ASSERT_TRUE(detect_cluster(options));
  EXPECT_EQ(options.backend, "Open MPI");
  EXPECT_EQ(options.node_rank, 1);
}

TEST_F(Detect, ANodeRankThatIsNoneIsNamed) {
  for (const char* const index : {"-1", "4294967296"}) {
    set({{"JOB_COMPLETION_INDEX", index}});
    try {
      node_rank_of_environment();
      FAIL() << "it was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr(std::string("JOB_COMPLETION_INDEX=") + index));
    }
  }
}

TEST_F(Detect, ProcessesWithoutANameInCommonNeedAnEndpoint) {
  set({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}});
  EXPECT_THAT(refusal(), HasSubstr("--rdzv-endpoint"));
  EXPECT_EQ(node_rank_of_environment(), 0);
}

TEST_F(Detect, ARankOfAnotherLauncherIsNoAgent) {
  set({{"RANK", "0"},
       {"WORLD_SIZE", "1"},
       {"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(refusal(), "nothing");
}

// Pods that a script numbers would each train alone.
TEST_F(Detect, NumbersThatNoLauncherGaveAreNotLeftOutSilently) {
  set({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
  testing::internal::CaptureStderr();
  EXPECT_EQ(refusal(), "nothing");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "a rank may start a job of its own";
  ::unsetenv("LOCAL_RANK");
  ::unsetenv("LOCAL_WORLD_SIZE");
  set({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}});
  testing::internal::CaptureStderr();
  EXPECT_EQ(refusal(), "nothing");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("RANK=1 and WORLD_SIZE=2 are not used: this starts a job of its own; for "
                        "one job over all of them, give --nnodes 2 --node-rank 1 --rdzv-endpoint "
                        "10.0.0.1:29500"));
}

TEST_F(Detect, AnIndexedJobTellsTheNumber) {
  set({{"JOB_COMPLETION_INDEX", "3"}});
  EXPECT_EQ(node_rank_of_environment(), 3);
}

}  // namespace
}  // namespace muster
