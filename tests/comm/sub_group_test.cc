// Groups of some of the job's ranks: what their errors call the ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "muster/base/error.h"
#include "muster/comm/process_group.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string words_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

class SubGroups : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ::setenv("MUSTER_BACKEND", GetParam(), 1); }
  void TearDown() override { ::unsetenv("MUSTER_BACKEND"); }
};
INSTANTIATE_TEST_SUITE_P(ThreadRanks,
                         SubGroups,
                         ::testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

// As the launcher's card and the mesh call them.
TEST_P(SubGroups, ErrorsInASubGroupNumberRanksAsTheJobDoes) {
  run_ranks(4, [](ProcessGroup& group) {
    auto pair = group.new_group({3, 1});
    if (!pair)
      return;
    EXPECT_EQ(pair->job_rank(0), 3);
    EXPECT_EQ(pair->job_rank(), group.rank());
    const auto differs = words_of([&] { pair->all_reduce(torch::ones({1 + group.rank()})); });
    EXPECT_THAT(
        differs,
        AllOf(HasSubstr("(group of ranks 3, 1)"), HasSubstr("on rank 3"), HasSubstr("on rank 1")));
  });
}

TEST_P(SubGroups, ARankThatLeavesASubGroupIsCalledByItsNumberInTheJob) {
  run_ranks(4, [](ProcessGroup& group) {
    auto pair = group.new_group({1, 3});
    if (group.rank() == 3) {
      EXPECT_THAT(words_of([&] { pair->shutdown(); }),
                  HasSubstr("got 'all_reduce sum Float [2]' on rank 1"));
    }
    if (group.rank() != 1)
      return;
    EXPECT_THAT(words_of([&] { pair->all_reduce(torch::ones({2})); }),
                HasSubstr("rank 3 left the group"));
  });
}

TEST_P(SubGroups, ListsThatDifferShowBothAndTheGroupIsAsGoodAsBefore) {
  run_ranks(3, [](ProcessGroup& group) {
    for (const auto& known : {std::vector{0, 1}, std::vector{0, 2}})
      group.new_group(known);  // which does not make a later list known
    const std::vector<int> list =
        group.rank() == 2 ? std::vector<int>{0, 2} : std::vector<int>{0, 1};
    EXPECT_THAT(words_of([&] { group.new_group(list); }),
                AllOf(HasSubstr("[0, 1]"), HasSubstr("[0, 2]"), HasSubstr("on rank 2")));
    group.barrier();
    const auto pair = group.new_group({0, 1});
    EXPECT_EQ(pair.has_value(), group.rank() < 2);
  });
}

}  // namespace
}  // namespace muster::testing
