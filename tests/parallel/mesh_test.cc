// Process groups along the axes of a grid.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/parallel/mesh.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

class MeshTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, MeshTest, ::testing::Values("shm", "gloo"));

TEST_P(MeshTest, SumsAlongEachAxis) {
  run_ranks(8,
            [](ProcessGroup& group) {
              Mesh mesh(group, {{"dp", 2}, {"pp", -1}, {"tp", 2}});
              const int rank = group.rank();
              EXPECT_EQ(mesh.size("pp"), 2);
              EXPECT_EQ(mesh.rank("dp"), rank / 4);
              EXPECT_EQ(mesh.rank("pp"), rank / 2 % 2);
              EXPECT_EQ(mesh.rank("tp"), rank % 2);
              const auto sum_over = [&](ProcessGroup& over) {
                at::Tensor value = torch::full({1}, rank, at::kLong);
                over.all_reduce(value);
                return value.item<int64_t>();
              };
              EXPECT_EQ(sum_over(mesh.group("tp")), rank / 2 * 4 + 1);
              EXPECT_EQ(sum_over(mesh.group("pp")), rank + (rank ^ 2));
              EXPECT_EQ(sum_over(mesh.group("dp")), rank + (rank ^ 4));
              ProcessGroup stage = mesh.joined({"dp", "tp"});
              EXPECT_EQ(sum_over(stage), rank & 2 ? 2 + 3 + 6 + 7 : 0 + 1 + 4 + 5);
              EXPECT_EQ(mesh.group("tp").rank(), mesh.rank("tp"));
              EXPECT_THROW(mesh.group("ep"), Error);
              mesh.shutdown();
            },
            {.backend = GetParam()});
}

TEST(Mesh, AnotherNumberOfRanksIsRefusedOnEachRank) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) { Mesh(group, {{"dp", 3}}); });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), ::testing::HasSubstr("the 2 ranks there are"));
}

}  // namespace
}  // namespace muster::testing
