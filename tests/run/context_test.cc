#include "muster/run/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

Context context_of(ProcessGroup& group) {
  RankEnv env;
  env.rank = group.rank();
  env.world_size = group.size();
  return Context({.env = env, .assignment = {}, .device = c10::kCPU, .group = group});
}

TEST(Context, SeedsDifferByRankAndStayTheSame) {
  run_ranks(3, [](ProcessGroup& group) {
    const Context ctx = context_of(group);
    EXPECT_EQ(ctx.seed(40), 40U + static_cast<uint64_t>(group.rank()));
  });
}

TEST(Context, SamplersOfAllRanksShareTheDataOut) {
  run_ranks(3, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    auto sampler = ctx.sampler(30, {.seed = 5});
    auto all = torch::empty({30}, torch::kLong);
    const auto indices = sampler.indices();
    group.all_gather(all, torch::tensor(indices));
    const auto* begin = all.const_data_ptr<int64_t>();
    EXPECT_EQ(std::set<int64_t>(begin, begin + 30).size(), 30U);
  });
}

TEST(Context, SamplersThatDifferAreRefusedOnEveryRank) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    ctx.sampler(30, {.seed = group.rank() == 2 ? 6 : 5}).indices();
  });
  for (const auto& failure : failures) EXPECT_THAT(message_of(failure), ::testing::HasSubstr("seed"));
}

}  // namespace
}  // namespace muster::testing
