#include "muster/cluster/slurm_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "muster/base/error.h"

namespace muster {
namespace {

using Names = std::vector<std::string>;

TEST(SlurmNodes, ListsAreExpanded) {
  EXPECT_EQ(parse_slurm_nodes("a"), Names{"a"});
  EXPECT_EQ(parse_slurm_nodes("a,b-1"), (Names{"a", "b-1"}));
  EXPECT_EQ(parse_slurm_nodes("a[1-3,07],b"), (Names{"a1", "a2", "a3", "a07", "b"}));
  EXPECT_EQ(parse_slurm_nodes("n[098-101]"), (Names{"n098", "n099", "n100", "n101"}));
  EXPECT_EQ(parse_slurm_nodes("r[1-2]n[3,4].x"), (Names{"r1n3.x", "r1n4.x", "r2n3.x", "r2n4.x"}));
}

TEST(SlurmNodes, OtherListsAreRefused) {
  for (const char* const text : {"",
                                 ",",
                                 "a,",
                                 "a[",
                                 "a[1",
                                 "a]",
                                 "a[]",
                                 "a[x]",
                                 "a[3-1]",
                                 "a[1-]",
                                 "a[1-2-3]",
                                 "-w",
                                 "a b",
                                 "a;b",
                                 "a[1-999999999]",
                                 "a[1-9999]b[1-9999]",
                                 "a[1-99999,1-99999]",
                                 "a[12345678901]"})
    EXPECT_THROW(parse_slurm_nodes(text), Error) << text;
}

TEST(SlurmNodes, CountsAreExpanded) {
  EXPECT_EQ(parse_slurm_counts("2"), std::vector<int>{2});
  EXPECT_EQ(parse_slurm_counts("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  for (const char* const text : {"", "x", "2(x", "2(x3", "2(x999999999)", "-1", "2(y3)"})
    EXPECT_THROW(parse_slurm_counts(text), Error) << text;
}

class SlurmEnvironment : public ::testing::Test {
 protected:
  void SetUp() override {
    set("SLURM_JOB_ID", "7");
    set("SLURM_JOB_NODELIST", "n[1-2]");
    set("SLURM_JOB_CPUS_PER_NODE", "4(x2)");
    set("SLURMD_NODENAME", "n2");
  }
  void TearDown() override {
    for (const std::string& name : names_)
      ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    names_.push_back(name);
    ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  Names names_;
};

TEST_F(SlurmEnvironment, ABatchScriptHasAllNodes) {
  const auto nodes = slurm_nodes_of_environment();
  ASSERT_TRUE(nodes);
  ASSERT_EQ(nodes->size(), 2U);
  EXPECT_EQ((*nodes)[1].name, "n2");
  EXPECT_EQ((*nodes)[1].cpus, 4);
  EXPECT_FALSE((*nodes)[0].here);
  EXPECT_TRUE((*nodes)[1].here);
  for (const std::string& word : srun_command((*nodes)[0], {"true"}))
    EXPECT_FALSE(word.starts_with("--het-group")) << word;
}

TEST_F(SlurmEnvironment, AHeterogeneousJobHasTheNodesOfAllComponents) {
  set("SLURM_HET_SIZE", "2");
  set("SLURM_JOB_NODELIST_HET_GROUP_0", "n2");
  set("SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0", "4");
  set("SLURM_JOB_NODELIST_HET_GROUP_1", "g[1-2],n2");
  const auto nodes = slurm_nodes_of_environment();
  ASSERT_TRUE(nodes);
  ASSERT_EQ(nodes->size(), 3U) << "a node of two components is one node";
  EXPECT_EQ((*nodes)[0].name, "n2");
  EXPECT_EQ((*nodes)[0].cpus, 4);
  EXPECT_EQ((*nodes)[2].name, "g2");
  EXPECT_EQ((*nodes)[2].cpus, 0) << "not told";
  EXPECT_THAT(srun_command((*nodes)[0], {"true"}), testing::Contains("--het-group=0"));
  EXPECT_THAT(srun_command((*nodes)[2], {"true"}), testing::Contains("--het-group=1"));
  set("SLURM_JOB_NODELIST_HET_GROUP_1", "");
  EXPECT_THROW(slurm_nodes_of_environment(), Error);
  set("SLURM_HET_SIZE", "999999999");
  EXPECT_THROW(slurm_nodes_of_environment(), Error);
}

TEST_F(SlurmEnvironment, ATaskOfSrunHasNone) {
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "2");
  EXPECT_FALSE(slurm_nodes_of_environment());
}

TEST_F(SlurmEnvironment, AnInteractiveShellIsNoTaskOfSrun) {
  set("SLURM_STEP_ID", "4294967290");
  set("SLURM_STEP_NUM_TASKS", "1");
  EXPECT_TRUE(slurm_nodes_of_environment());
}

TEST(SlurmOutside, ThereIsNone) {
  ::unsetenv("SLURM_JOB_ID");
  EXPECT_FALSE(slurm_nodes_of_environment());
}

}  // namespace
}  // namespace muster
