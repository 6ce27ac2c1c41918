#include "muster/checkpoint/training/kept_state.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/strings.h"
#include "muster/checkpoint/training/unlike_rank0.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

KeptState state_of_step(int64_t step, double value) {
  KeptState state;
  state.image.position.step = step;
  state.image.model = {{"weight", torch::full({3}, value)}, {"mean", torch::full({2}, value)}};
  state.image.parts = {{"numbers/data/epoch", torch::scalar_tensor(value)},
                       {"empty", torch::empty({0})}};
  state.image.optimizer =
      OptimizerSnapshot{.description = "{}", .tensors = {{"weight.step", torch::tensor(7)}}};
  state.branch.abandoned = {{.after = step, .until = step + 2}};
  state.branch.begun_by = "first";
  state.branch.path = cat("step-", step);
  return state;
}

TEST(KeptStates, AreCopiesInMemoryThatIsUsedAgain) {
  KeptStates kept;
  EXPECT_EQ(kept.newest(), nullptr);
  KeptState given = state_of_step(1, 1);
  kept.keep(given);
  const void* const memory = kept.newest()->image.model.at("weight").data_ptr();
  given.image.model.at("weight").fill_(9);
  EXPECT_EQ(kept.newest()->image.model.at("weight")[0].item<float>(), 1);
  kept.keep(state_of_step(2, 2));
  EXPECT_EQ(kept.newest()->image.position.step, 2);
  EXPECT_EQ(kept.newest()->image.model.at("weight").data_ptr(), memory);
}

TEST(KeptStates, OfOneRankAndFolderAreThoseOfThisProcess) {
  EXPECT_EQ(&kept_by_process<KeptStates>("a", 0), &kept_by_process<KeptStates>("a", 0));
  EXPECT_NE(&kept_by_process<KeptStates>("a", 0), &kept_by_process<KeptStates>("a", 1));
  EXPECT_NE(&kept_by_process<KeptStates>("a", 0), &kept_by_process<KeptStates>("b", 0));
}

TEST(KeptStates, WithoutAnyThereIsNothingToFind) {
  run_ranks(2, [](ProcessGroup& group) { EXPECT_FALSE(find_newest_kept(group, KeptStates())); });
}

// Rank 0 is new, rank 1 a step behind, rank 3 has the newest as rank 2 has.
TEST(KeptStates, TheNewestGoesToAllThatHaveItNot) {
  for (const char* backend : {"shm", "gloo"}) {
    run_ranks(4,
              [](ProcessGroup& group) {
                KeptStates kept;
                if (group.rank() == 1)
                  kept.keep(state_of_step(4, 4));
                if (group.rank() >= 2) {
                  KeptState state = state_of_step(5, 5);
                  state.model_of_rank0 = {{"mean", torch::full({2}, 50.0)}};
                  kept.keep(state);
                }
                const auto where = find_newest_kept(group, kept);
                ASSERT_TRUE(where);
                EXPECT_EQ(where->source, 2);
                EXPECT_THAT(where->others, ElementsAre(0, 1));
                share_newest_kept(group, *where, kept);
                const KeptState& mine = *kept.newest();
                EXPECT_EQ(mine.image.position.step, 5);
                EXPECT_EQ(mine.image.model.at("weight")[2].item<float>(), 5);
                EXPECT_EQ(mine.image.model.at("mean")[1].item<float>(), group.rank() < 2 ? 50 : 5)
                    << "rank 0's, where a rank has nothing of its own";
                EXPECT_EQ(mine.image.parts.at("numbers/data/epoch").item<float>(), 5);
                EXPECT_EQ(mine.image.parts.at("empty").numel(), 0);
                EXPECT_EQ(mine.image.optimizer->tensors.at("weight.step").item<int64_t>(), 7);
                EXPECT_EQ(mine.branch.begun_by, "first");
                EXPECT_EQ(mine.branch.path, "step-5");
              },
              {.backend = backend});
  }
}

TEST(TensorsUnlikeRank0, AreThoseThatDifferOnSomeRank) {
  run_ranks(3, [](ProcessGroup& group) {
    NamedTensors mine = {{"same", torch::arange(1000)}, {"also", torch::zeros({0})}};
    mine["other"] = torch::full({5}, group.rank() == 2 ? 1.0 : 0.0, torch::kDouble);
    if (group.rank() == 0)
      mine["alone"] = torch::tensor({true, false});
    const NamedTensors given = tensors_unlike_rank0(group, mine);
    if (group.rank() == 0) {
      EXPECT_THAT(given, IsEmpty());
      return;
    }
    ASSERT_EQ(given.size(), 2u);
    EXPECT_TRUE(torch::equal(given.at("other"), torch::zeros({5}, torch::kDouble)));
    EXPECT_TRUE(torch::equal(given.at("alone"), torch::tensor({true, false})));
  });
}

TEST(TensorsUnlikeRank0, SeesTheLastByte) {
  for (const int64_t size : {1, 7, 31, 32, 33, 64, 100}) {
    run_ranks(2, [&](ProcessGroup& group) {
      torch::Tensor bytes = torch::zeros({size}, torch::kByte);
      if (group.rank() == 1)
        bytes[size - 1] = 1;
      EXPECT_EQ(tensors_unlike_rank0(group, {{"bytes", bytes}}).size(), group.rank() == 1 ? 1u : 0u)
          << size;
    });
  }
}

}  // namespace
}  // namespace muster::testing
