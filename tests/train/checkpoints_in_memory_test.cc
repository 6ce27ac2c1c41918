// What ranks keep of a training in memory: after going back, and of models that are divided over
// ranks, where each rank's part lies in another one's memory too.
#include <gmock/gmock.h>
#include <malloc.h>
#include <torch/torch.h>

#include <array>
#include <cmath>

#include "muster/checkpoint/training/checkpoints.h"
#include "muster/checkpoint/training/kept_shards.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;

TEST(CheckpointsInMemory, WhatAnEarlierStateIsGoneBackToIsKept) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    const auto become = [&](float value) {
      const at::NoGradGuard no_grad;
      net->weight.fill_(value);
    };
    Checkpoints checkpoints(group,
                            {.folder = folder.path(), .every = 2, .in_memory = 1, .run_id = "run"});
    checkpoints.add("model", net);
    for (int64_t step = 1; step <= 5; ++step) {
      become(static_cast<float>(step));
      checkpoints.save_when_due(step);
    }
    become(NAN);
    EXPECT_EQ(checkpoints.go_back(1), 4);
    become(100);  // of a step that is lost with the rank that dies in it
    Checkpoints again(group,
                      {.folder = folder.path(), .in_memory = 1, .run_id = "run", .attempt = 1});
    again.add("model", net);
    ASSERT_TRUE(again.restore());
    EXPECT_EQ(net->weight.item<float>(), 4) << "not 5, which it had gone back from";
    EXPECT_EQ(again.step(), 5) << "the data go on";
  });
}

TEST(CheckpointsInMemory, WhatWasLeftByGoingBackStaysLeft) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    Checkpoints checkpoints(
        group,
        {.folder = folder.path(), .every = 2, .keep_last = 0, .in_memory = 1, .run_id = "run"});
    checkpoints.add("model", net);
    for (int64_t step = 1; step <= 7; ++step)
      checkpoints.save_when_due(step);
    EXPECT_EQ(checkpoints.go_back(4), 2);
    Checkpoints again(
        group,
        {.folder = folder.path(), .keep_last = 0, .in_memory = 1, .run_id = "run", .attempt = 1});
    again.add("model", net);
    ASSERT_TRUE(again.restore());
    EXPECT_EQ(again.go_back(1), 2) << "not 6, which the training had gone back from";
  });
}

TEST(NeighbourDistance, IsToAnotherHostWhereThereIsOne) {
  EXPECT_EQ(neighbour_distance({"a"}), 0);
  EXPECT_EQ(neighbour_distance({"a", "a", "a"}), 1);
  EXPECT_EQ(neighbour_distance({"a", "b", "c"}), 1);
  EXPECT_EQ(neighbour_distance({"a", "a", "b", "b"}), 2);
  EXPECT_EQ(neighbour_distance({"a", "a", "b", "b", "c", "c"}), 2);
  EXPECT_EQ(neighbour_distance({"a", "a", "a", "b"}), 1) << "there is none for all";
}

KeptState part_of_rank(int rank, int64_t step, int64_t goings_back = 0) {
  KeptState state;
  state.image.model = {{"weight", torch::full({rank + 2}, 10.0 * rank + static_cast<double>(step))},
                       {"mask", torch::tensor({true, false, rank == 1})}};
  state.image.optimizer =
      OptimizerSnapshot{.description = "{}", .tensors = {{"weight.step", torch::tensor(step)}}};
  state.image.parts = {
      {"numbers/data/epoch", torch::full({}, static_cast<double>(step), torch::kDouble)}};
  state.image.position.step = step;
  state.image.world_size = 3;
  state.rank = rank;
  state.branch.goings_back = goings_back;
  state.branch.begun_by = "first";
  return state;
}

void expect_part(const std::optional<KeptState>& state, int rank, int64_t step) {
  ASSERT_TRUE(state);
  const KeptState expected = part_of_rank(rank, step);
  EXPECT_EQ(state->image.position.step, step);
  EXPECT_EQ(state->branch.begun_by, "first");
  EXPECT_TRUE(torch::equal(state->image.model.at("weight"), expected.image.model.at("weight")));
  EXPECT_TRUE(torch::equal(state->image.model.at("mask"), expected.image.model.at("mask")));
  EXPECT_EQ(state->image.optimizer->tensors.at("weight.step").item<int64_t>(), step);
  EXPECT_EQ(state->image.parts.at("numbers/data/epoch").item<double>(), static_cast<double>(step));
}

// docs/training.md tells of four times the part. What is kept stays, however many steps follow.
TEST(KeptShards, TakesFourTimesTheRanksPart) {
  constexpr int64_t kPart = int64_t{16} << 20;
  const auto bytes_in_use = [] {
    const struct mallinfo2 use = ::mallinfo2();
    return static_cast<int64_t>(use.uordblks + use.hblkhd);
  };
  if (const at::Tensor probe = at::ones({kPart}, at::kByte); bytes_in_use() < kPart)
    GTEST_SKIP() << "a sanitizer has the memory";
  run_ranks(2, [&](ProcessGroup& group) {
    KeptState state = part_of_rank(group.rank(), 1);
    state.image.model = {{"weight", at::zeros({kPart}, at::kByte)}};
    group.barrier();
    const int64_t before = bytes_in_use();
    group.barrier();
    KeptShards kept;
    for (int64_t step = 1; step <= 5; ++step) {
      state.image.position.step = step;
      kept.keep(state, group);
    }
    group.barrier();
    const int64_t of_all = bytes_in_use() - before;
    EXPECT_GE(of_all, 2 * 4 * kPart);
    EXPECT_LE(of_all, 2 * 4 * kPart + kPart);
    group.barrier();
  });
}

// Rank 1 is a new process.
TEST(KeptShards, ALostRanksPartComesFromItsNeighbour) {
  for (const char* backend : {"shm", "gloo"}) {
    run_ranks(3,
              [](ProcessGroup& group) {
                KeptShards kept;
                for (int64_t step = 1; step <= 4; ++step)
                  kept.keep(part_of_rank(group.rank(), step), group);
                KeptShards none;
                KeptShards& mine = group.rank() == 1 ? none : kept;
                expect_part(mine.recover(group), group.rank(), 4);
                expect_part(mine.recover(group), group.rank(), 4);
                mine.keep(part_of_rank(group.rank(), 5), group);
                expect_part(mine.recover(group), group.rank(), 5);
              },
              {.backend = backend});
  }
}

TEST(KeptShards, WhereARankAndItsNeighbourAreLostThereIsNothing) {
  run_ranks(3, [](ProcessGroup& group) {
    KeptShards kept;
    kept.keep(part_of_rank(group.rank(), 1), group);
    KeptShards none;
    EXPECT_FALSE((group.rank() < 2 ? none : kept).recover(group));
  });
}

TEST(KeptShards, AfterGoingBackWhatFollowsIsNewer) {
  run_ranks(3, [](ProcessGroup& group) {
    KeptShards kept;
    kept.keep(part_of_rank(group.rank(), 7), group);
    kept.keep(part_of_rank(group.rank(), 6, 1), group);
    expect_part(kept.recover(group), group.rank(), 6);
  });
}

TEST(KeptShards, OfMoreRanksIsNothingForFewer) {
  std::array<KeptShards, 3> kept;
  run_ranks(3, [&](ProcessGroup& group) {
    kept.at(static_cast<size_t>(group.rank())).keep(part_of_rank(group.rank(), 1), group);
  });
  run_ranks(2, [&](ProcessGroup& group) {
    KeptShards& mine = kept.at(static_cast<size_t>(group.rank()));
    EXPECT_FALSE(mine.recover(group));
    EXPECT_EQ(mine.ranks_then(), 3);
  });
}

// A parameter and a layer of one name, so that the names of moments begin alike.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl() {
    register_module("scale", layer);
    weight = register_parameter("scale", torch::ones({5}));
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x * weight); }
  torch::nn::Linear layer{5, 3};
  at::Tensor weight;
};
TORCH_MODULE(Scaled);

TEST(CheckpointsInMemory, ADividedModelComesBackFromMemory) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    Scaled net;
    {
      const at::NoGradGuard no_grad;  // ranks are threads, and torch's generator is theirs together
      for (torch::Tensor& parameter : net->parameters())
        parameter.fill_(0.1);
    }
    FullySharded sharded(group);
    auto model = sharded.wrap(net);
    torch::optim::AdamW optimizer(sharded.parameters(), 0.1);
    const auto train = [&] {
      optimizer.zero_grad();
      model(torch::ones({2, 5})).square().sum().backward();
      optimizer.step();
    };
    const auto with = [&](int attempt) {
      return CheckpointsOptions{.folder = folder.path(),
                                .in_memory = 1,
                                .in_memory_of_neighbours = true,
                                .run_id = "run",
                                .attempt = attempt};
    };
    Checkpoints checkpoints(group, with(0));
    checkpoints.add("model", sharded.pieces(*net))
        .add("optimizer", optimizer, sharded.pieces(*net));
    train();
    checkpoints.save_when_due(1);
    train();
    const auto weights = [&] {
      const auto whole = sharded.whole_parameters();
      return torch::nn::utils::parameters_to_vector(net->parameters()).detach().clone();
    };
    const torch::Tensor second = weights();
    train();
    Checkpoints again(group, with(1));
    again.add("model", sharded.pieces(*net)).add("optimizer", optimizer, sharded.pieces(*net));
    ASSERT_TRUE(again.restore());
    train();
    EXPECT_TRUE(torch::equal(weights(), second)) << "its moments too";
  });
}

}  // namespace
}  // namespace muster::testing
