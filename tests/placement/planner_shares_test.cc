// What the ranks of a plan need of memory, and get of the batch.
#include "muster/placement/planner.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "tests/placement/machines.h"
#include "tests/placement/plans.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> shares(const Plan& plan) {
  std::vector<int64_t> all;
  for (const RankPlan& rank : plan.ranks)
    all.push_back(rank.batch_share);
  return all;
}

Inventory machine_with_free(const std::vector<uint64_t>& free_gib) {
  return {.source = "test", .hosts = {host_with_free(free_gib)}};
}

TEST(Planner, Scores) {
  const Plan plan =
      muster::plan(machine({4}),
                   {.policy = "fastest", .scores = {{"0", 100}, {"1", 90}, {"2", 80}, {"3", 110}}});
  EXPECT_THAT(devices(plan), ElementsAre("n0:3", "n0:0", "n0:1", "n0:2"));
  EXPECT_EQ(plan.ranks[0].reason, "fastest: score 110, 1 of 4");
  EXPECT_THAT(error_of(machine({1}), {.policy = "fastest", .scores = {{"0", 0}}}),
              HasSubstr("above 0, got 0 for 0; correct it"));
}

TEST(Planner, RankMemory) {
  const Inventory inventory = machine_with_free({40, 10, 80, 20});
  const Plan plan = muster::plan(inventory, {.rank_memory_bytes = {50 * kGiB, 20 * kGiB}});
  EXPECT_EQ(plan.policy, "memory");
  EXPECT_THAT(devices(plan), ElementsAre("n0:2", "n0:3", "n0:0")) << "as many as fit";
  EXPECT_EQ(plan.ranks[1].reason, "memory: needs 20.0 GiB, 20.0 GiB free");
  EXPECT_EQ(error_of(inventory, {.nproc_per_node = 4, .rank_memory_bytes = {50 * kGiB, 20 * kGiB}}),
            "--nproc-per-node: expected at most 3 ranks on host n0 (3 GPUs large enough), got 4: "
            "local rank 3 "
            "needs "
            "20.0 GiB and gets no GPU of its own; free are GPU 0 40.0 GiB, GPU 1 10.0 GiB, GPU 2 "
            "80.0 GiB, GPU 3 "
            "20.0 GiB; give --nproc-per-node 3 or less, or say what the others get: --surplus cpu, "
            "drop or share");
  EXPECT_THAT(devices(muster::plan(inventory,
                                   {.nproc_per_node = 4,
                                    .rank_memory_bytes = {50 * kGiB, 20 * kGiB},
                                    .surplus = Surplus::share})),
              ElementsAre("n0:2", "n0:3", "n0:0", "n0:0"));
  EXPECT_THAT(error_of(inventory, {.rank_memory_bytes = {90 * kGiB}}, ErrorCode::unavailable),
              HasSubstr("no rank there: local rank 0 needs 90.0 GiB"));
  EXPECT_THAT(error_of(inventory, {.nproc_per_node = 1, .rank_memory_bytes = {90 * kGiB}}),
              HasSubstr("20.0 GiB; say what the others get: --surplus cpu, drop or share"));
}

TEST(Planner, NoPolicyExceedsMemory) {
  const Inventory inventory = machine_with_free({40, 10});
  EXPECT_EQ(error_of(inventory, {.policy = "sequential", .rank_memory_bytes = {20 * kGiB}}),
            "--rank-memory: expected 20.0 GiB free for local rank 1 of host n0, got 10.0 GiB on "
            "GPU 1, which "
            "policy "
            "sequential gives it; --policy memory looks for one that has it");
  EXPECT_THAT(error_of(inventory,
                       {.nproc_per_node = 3,
                        .policy = "sequential",
                        .rank_memory_bytes = {30 * kGiB, 5 * kGiB, 20 * kGiB},
                        .surplus = Surplus::share}),
              HasSubstr("for local rank 2 of host n0, got 10.0 GiB on GPU 0"));
}

// A job that goes on with fewer ranks or hosts is planned anew, by the same request.
TEST(Planner, NeedsMayBeOfRanksThatHaveLeft) {
  const Request request{.nproc_per_node = 2, .rank_memory_bytes = {kGiB, kGiB, kGiB}};
  EXPECT_EQ(muster::plan(machine_with_free({40, 10}), request).ranks.size(), 2U);
  const Request of_host{.hosts = {{"n0", 1}}, .rank_memory_bytes = {kGiB, kGiB}};
  EXPECT_EQ(muster::plan(machine_with_free({40, 10}), of_host).ranks.size(), 1U);
}

TEST(Planner, BatchShares) {
  EXPECT_THAT(shares(muster::plan(machine({2, 1}), {.global_batch = 64})), ElementsAre(22, 21, 21));
  EXPECT_THAT(shares(muster::plan(machine({4}), {})), ElementsAre(0, 0, 0, 0));
  const Request scored{.scores = {{"0", 300}, {"1", 100}}, .global_batch = 100};
  EXPECT_THAT(shares(muster::plan(machine({2}), scored)), ElementsAre(75, 25));
  EXPECT_EQ(muster::plan(machine({2}), scored).global_batch, 100);
  EXPECT_THAT(shares(muster::plan(machine({0}), {.global_batch = 7})), ElementsAre(4, 3))
      << "CPU slots alike";
}

TEST(Planner, RanksThatShareAGpuShareItsScore) {
  const Plan plan = muster::plan(machine({2}),
                                 {.nproc_per_node = 3,
                                  .scores = {{"Test GPU", 10}},
                                  .global_batch = 40,
                                  .surplus = Surplus::share});
  EXPECT_THAT(shares(plan), ElementsAre(10, 20, 10));
}

TEST(Planner, BadBatches) {
  EXPECT_THAT(error_of(machine({4}), {.global_batch = 3}),
              HasSubstr("one sample for each of 4 ranks, got 3"));
  EXPECT_THAT(error_of(machine({4}), {.global_batch = -3}),
              HasSubstr("a number of samples, got -3"));
  EXPECT_THAT(
      error_of(machine({2}), {.scores = {{"0", 1}}, .global_batch = 8}),
      HasSubstr("--global-batch: expected a score for each GPU, got none for GPU 1 of host n0"));
  const Request mixed{
      .nproc_per_node = 2, .scores = {{"0", 9}}, .global_batch = 10, .surplus = Surplus::cpu};
  EXPECT_THAT(error_of(machine({1}), mixed),
              HasSubstr("got none for CPU slot 0 of host n0 (rank 1); add 'cpu'"));
  Request with_cpu = mixed;
  with_cpu.scores["cpu"] = 1;
  EXPECT_THAT(shares(muster::plan(machine({1}), with_cpu)), ElementsAre(9, 1));
}

}  // namespace
}  // namespace muster
