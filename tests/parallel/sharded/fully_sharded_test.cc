// Parameters divided over ranks: the losses of a training that divides nothing, what lies where,
// and faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamW;

constexpr int kFullSteps = 20;

struct FullRun {
  std::vector<float> losses;
  torch::Tensor parameters;  // whole
  torch::Tensor without_key_biases;
};

torch::Tensor all_in_one(const torch::nn::Module& model) {
  std::vector<torch::Tensor> flat;
  for (const auto& parameter : model.parameters())
    flat.push_back(parameter.detach().flatten());
  return torch::cat(flat).clone();
}

// The biases of attention's keys, a third of those of qkv, change no loss: their gradients are
// rounding errors.
torch::Tensor without_key_biases(const torch::nn::Module& model) {
  std::vector<torch::Tensor> flat;
  for (const auto& item : model.named_parameters()) {
    torch::Tensor values = item.value().detach().flatten().clone();
    if (item.key().ends_with("qkv.bias"))
      values.chunk(3)[1].zero_();
    flat.push_back(values);
  }
  return torch::cat(flat);
}

template <class Model>
std::vector<float> full_losses(ProcessGroup& group,
                               Model& model,
                               torch::optim::Optimizer& optimizer,
                               const std::function<ShardedBatch(int64_t)>& batch_of) {
  std::vector<float> losses;
  for (int64_t step = 0; step < kFullSteps; ++step) {
    const auto batch = batch_of(step).of(group.rank(), group.size());
    optimizer.zero_grad();
    const auto loss = sharded_loss(model.forward(batch.x), batch.y);
    loss.backward();
    optimizer.step();
    losses.push_back(mean_loss(loss, group));
  }
  return losses;
}

template <class Model>
FullRun full_ddp(ProcessGroup& group,
                 Model model,
                 const std::function<ShardedBatch(int64_t)>& batch_of) {
  at::set_num_threads(1);
  DistributedDataParallel<Model> wrapped(model, group);
  AdamW optimizer(model->parameters(), 0.01);
  auto losses = full_losses(group, wrapped, optimizer, batch_of);
  return {losses, all_in_one(*model), without_key_biases(*model)};
}

FullRun full_mlp(ProcessGroup& group, ProcessGroup& over, const FullyShardedOptions& options = {}) {
  at::set_num_threads(1);
  FullySharded sharded(over, options);
  auto mlp = sharded_mlp();
  LayeredMlpImpl model(mlp, sharded);
  AdamW optimizer(sharded.parameters(), 0.01);
  auto losses = full_losses(group, model, optimizer, mlp_batch);
  const auto whole = sharded.whole_parameters();
  return {losses, all_in_one(*mlp), without_key_biases(*mlp)};
}

FullRun full_gpt(ProcessGroup& group, ProcessGroup& over, const FullyShardedOptions& options = {}) {
  at::set_num_threads(1);
  FullySharded sharded(over, options);
  auto gpt = sharded_gpt();
  auto model = sharded.wrap(std::make_shared<BlockedGptImpl>(gpt, sharded));
  AdamW optimizer(sharded.parameters(), 0.01);
  auto losses = full_losses(group, model, optimizer, gpt_batch);
  const auto whole = sharded.whole_parameters();
  return {losses, all_in_one(*gpt), without_key_biases(*gpt)};
}

template <class Model>
std::vector<float> full_alone(Model model, const std::function<ShardedBatch(int64_t)>& batch_of) {
  at::set_num_threads(1);
  AdamW optimizer(model->parameters(), 0.01);
  std::vector<float> losses;
  for (int64_t step = 0; step < kFullSteps; ++step) {
    const auto batch = batch_of(step);
    optimizer.zero_grad();
    const auto loss = sharded_loss(model->forward(batch.x), batch.y);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.template item<float>());
  }
  return losses;
}

void expect_same(const FullRun& expected, const FullRun& got) {
  EXPECT_EQ(largest_difference(expected.losses, got.losses), 0);
  EXPECT_TRUE(torch::equal(expected.parameters, got.parameters));
}

// Where three addends and more are added in another order, as Gloo's ring does in each of its
// chunks, which are others here. (Of the parameters, the biases of attention's keys have gradients
// of rounding errors alone, which Adam makes large.)
void expect_losses_near(const FullRun& expected, const FullRun& got) {
  EXPECT_LE(largest_difference(expected.losses, got.losses), 1e-6);
  EXPECT_LE((expected.without_key_biases - got.without_key_biases).abs().max().item<float>(), 5e-6);
}

struct FullCase {
  const char* backend;
  int ranks;
};
class FullyShardedTest : public ::testing::TestWithParam<FullCase> {};
INSTANTIATE_TEST_SUITE_P(Ranks,
                         FullyShardedTest,
                         ::testing::Values(FullCase{"shm", 1},
                                           FullCase{"shm", 2},
                                           FullCase{"shm", 3},
                                           FullCase{"shm", 4},
                                           FullCase{"gloo", 2},
                                           FullCase{"gloo", 3}),
                         [](const auto& info) {
                           return std::string(info.param.backend) +
                                  std::to_string(info.param.ranks);
                         });

TEST_P(FullyShardedTest, LossesAreDdpsAndThoseOfOneProcess) {
  const auto [backend, ranks] = GetParam();
  const auto mlp = full_alone(sharded_mlp(), mlp_batch), gpt = full_alone(sharded_gpt(), gpt_batch);
  const auto compare =
      std::string(backend) == "gloo" && ranks > 2 ? expect_losses_near : expect_same;
  run_ranks(ranks,
            [&](ProcessGroup& group) {
              const auto own_mlp = full_mlp(group, group), own_gpt = full_gpt(group, group);
              compare(full_ddp(group, sharded_mlp(), mlp_batch), own_mlp);
              compare(full_ddp(group, sharded_gpt(), gpt_batch), own_gpt);
              compare(full_gpt(group, group, {.prefetch = false}), own_gpt);
              EXPECT_LE(largest_difference(mlp, own_mlp.losses), 2e-6);
              EXPECT_LE(largest_difference(gpt, own_gpt.losses), 2e-6);
            },
            {.backend = backend});
}

TEST(FullySharded, DividesInsideOneGroupAndAveragesOverAnother) {
  run_ranks(4, [](ProcessGroup& group) {
    const auto group_of = [&](const std::vector<int>& one, const std::vector<int>& other) {
      auto first = group.new_group(one);
      auto second = group.new_group(other);
      return first ? *first : *second;
    };
    ProcessGroup inside = group_of({0, 1}, {2, 3});
    ProcessGroup across = group_of({0, 2}, {1, 3});
    const auto expected = full_ddp(group, sharded_gpt(), gpt_batch);
    expect_losses_near(expected, full_gpt(group, inside, {.replicate_group = across}));
  });
}

TEST(FullySharded, ComputesInBfloat16WithPartsInFloat) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto expected = full_gpt(group, group);
    for (const auto reduce : {at::kFloat, at::kBFloat16}) {
      const auto got =
          full_gpt(group, group, {.compute_dtype = at::kBFloat16, .reduce_dtype = reduce});
      EXPECT_LE(largest_difference(expected.losses, got.losses), 0.03);
      EXPECT_GT(largest_difference(expected.losses, got.losses), 0);
      EXPECT_EQ(got.parameters.scalar_type(), at::kFloat);
    }
  });
}

size_t whole_bytes(const torch::nn::Module& model) {
  size_t bytes = 0;
  for (const auto& parameter : model.parameters())
    bytes += parameter.storage().nbytes();
  return bytes;
}

TEST(FullySharded, ParametersAndGradientsAreFreedBetweenSteps) {
  run_ranks(3, [](ProcessGroup& group) {
    FullySharded sharded(group);
    auto gpt = sharded_gpt();
    auto model = sharded.wrap(std::make_shared<BlockedGptImpl>(gpt, sharded));
    EXPECT_EQ(whole_bytes(*gpt), 0);
    const auto batch = gpt_batch(0).of(group.rank(), group.size());
    const auto loss = sharded_loss(model(batch.x), batch.y);
    EXPECT_EQ(whole_bytes(*gpt->blocks), 0);
    loss.backward();
    EXPECT_EQ(whole_bytes(*gpt), 0);
    for (const auto& parameter : gpt->parameters())
      EXPECT_EQ(parameter.grad().storage().nbytes(), 0);
    int64_t elements = 0;
    for (const auto& part : sharded.parameters()) {
      EXPECT_TRUE(part.grad().defined());
      elements += part.numel();
    }
    int64_t all = 0;
    for (const auto& parameter : gpt->parameters())
      all += parameter.numel();
    EXPECT_LE(elements, all / 3 + 3);
    {
      const torch::NoGradGuard no_grad;
      model(batch.x);
      EXPECT_EQ(whole_bytes(*gpt), 0);
    }
    // The outer module is gathered once a step, the blocks twice; a gradient goes once.
    const ShardedTraffic traffic = sharded.traffic();
    int64_t blocks = 0;
    for (const auto& parameter : gpt->blocks->parameters())
      blocks += parameter.numel();
    EXPECT_NEAR(static_cast<double>(traffic.gathered), 4.0 * (2 * all + blocks), 4 * 3 * 9);
    EXPECT_NEAR(static_cast<double>(traffic.scattered), 4.0 * all, 4 * 3 * 3);
  });
}

TEST(FullySharded, GathersMicroBatchesAndClipsByTheNormOfAll) {
  run_ranks(2, [](ProcessGroup& group) {
    at::set_num_threads(1);
    auto whole = sharded_gpt();
    DistributedDataParallel wrapped(whole, group);
    torch::optim::SGD plain(whole->parameters(), 0.1);
    FullySharded sharded(group);
    auto gpt = sharded_gpt();
    auto model = sharded.wrap(std::make_shared<BlockedGptImpl>(gpt, sharded));
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (int64_t step = 0; step < 4; ++step) {
      const auto batch = gpt_batch(step).of(group.rank(), group.size());
      plain.zero_grad();
      optimizer.zero_grad();
      for (int micro = 0; micro < 2; ++micro) {
        const auto x = batch.x.narrow(0, 3 * micro, 3), y = batch.y.narrow(0, 3 * micro, 3);
        const auto local = wrapped.no_sync_if(micro == 0);
        sharded_loss(wrapped(x), y).backward();
        const auto also_local = micro == 0 ? sharded.no_sync() : nullptr;
        sharded_loss(model(x), y).backward();
      }
      const double norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.05);
      EXPECT_NEAR(sharded.clip_grad_norm(0.05).item<float>(), norm, 2e-6);
      plain.step();
      optimizer.step();
    }
    const auto guard = sharded.whole_parameters();
    EXPECT_LE((all_in_one(*whole) - all_in_one(*gpt)).abs().max().item<float>(), 5e-7);
  });
}

// Two losses through one model before their backward, and a backward after another model's forward.
TEST(FullySharded, SeveralForwardsBeforeABackward) {
  run_ranks(2, [](ProcessGroup& group) {
    at::set_num_threads(1);
    auto plain = sharded_gpt();
    FullySharded sharded(group);
    auto model = sharded.wrap(std::make_shared<BlockedGptImpl>(sharded_gpt(), sharded));
    const auto a = gpt_batch(0), b = gpt_batch(1);
    (sharded_loss(plain->forward(a.x), a.y) + sharded_loss(plain->forward(b.x), b.y)).backward();
    (sharded_loss(model(a.x), a.y) + sharded_loss(model(b.x), b.y)).backward();
    double squares = 0;
    for (const auto& parameter : plain->parameters())
      squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(sharded.clip_grad_norm(1e9).item<float>(), std::sqrt(squares), 1e-6);
    const auto first = sharded_loss(model(a.x), a.y);
    const auto second = sharded_loss(model(b.x), b.y);
    first.backward();
    second.backward();
    EXPECT_NEAR(sharded.clip_grad_norm(1e9).item<float>(), 2 * std::sqrt(squares), 2e-6);
  });
}

TEST(FullySharded, CheckpointsAreAPlainModels) {
  const auto folder = std::filesystem::temp_directory_path() / cat("fully-sharded-", ::getpid());
  const std::string path = (folder / "step-7").string();
  run_ranks(3, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    FullySharded sharded(group);
    auto gpt = sharded_gpt();
    auto model = sharded.wrap(std::make_shared<BlockedGptImpl>(gpt, sharded));
    AdamW optimizer(sharded.parameters(), 0.01);
    full_losses(group, model, optimizer, gpt_batch);
    torch::Tensor trained;
    {
      const auto whole = sharded.whole_parameters();
      trained = all_in_one(*gpt);
      AdamW plain(gpt->parameters(), 0.01);
      sharded.gather_state(optimizer, plain);
      save_checkpoint({.directory = folder.string()}, {*gpt, &plain}, {.step = 7}, group);
    }
    const auto expected = full_losses(group, model, optimizer, gpt_batch);
    // A plain model of one process goes on from there,
    auto alone = sharded_gpt();
    AdamW plain(alone->parameters(), 0.5);
    load_checkpoint(path, {*alone, &plain}, group);
    EXPECT_TRUE(torch::equal(all_in_one(*alone), trained));
    DistributedDataParallel wrapped(alone, group);
    EXPECT_EQ(full_losses(group, wrapped, plain, gpt_batch), expected);
    // and one that is divided, which has trained since.
    {
      const auto whole = sharded.whole_parameters();
      EXPECT_FALSE(torch::equal(all_in_one(*gpt), trained));
      AdamW loaded(gpt->parameters(), 0.5);
      load_checkpoint(path, {*gpt, &loaded}, group);
      sharded.divide_state(optimizer, loaded);
      EXPECT_THROW(model(gpt_batch(0).x), Error);
    }
    EXPECT_EQ(full_losses(group, model, optimizer, gpt_batch), expected);
  });
  std::filesystem::remove_all(folder);
}

TEST(FullySharded, ARankThatEndsIsNamedOnTheOthers) {
  for (const bool in_backward : {false, true}) {
    const auto failures = failures_of_ranks(3, [&](ProcessGroup& group) {
      FullySharded sharded(group);
      auto model = sharded.wrap(std::make_shared<BlockedGptImpl>(sharded_gpt(), sharded));
      const auto batch = gpt_batch(0);
      if (group.rank() == 1 && !in_backward)
        throw std::runtime_error("gone");
      const auto loss = sharded_loss(model(batch.x), batch.y);
      if (group.rank() == 1)
        throw std::runtime_error("gone");
      loss.backward();
    });
    for (const size_t rank : {0, 2})
      EXPECT_THAT(message_of(failures[rank]), HasSubstr("rank 1"));
  }
}

TEST(FullySharded, WrongArgumentsAreRefusedOnEveryRank) {
  const auto refused = [](const std::function<void(torch::nn::LinearImpl&, int)>& change,
                          const char* says) {
    const auto failures = failures_of_ranks(3, [&](ProcessGroup& group) {
      auto layer = std::make_shared<torch::nn::LinearImpl>(3, 2);
      {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : layer->parameters())
          parameter.fill_(1);
      }
      change(*layer, group.rank());
      FullySharded sharded(group);
      sharded.wrap(layer);
      group.shutdown();
    });
    for (const auto& failure : failures)
      EXPECT_THAT(message_of(failure), HasSubstr(says));
  };
  refused(
      [](auto& layer, int rank) {
        const torch::NoGradGuard no_grad;
        if (rank == 1)
          layer.weight.fill_(2);
      },
      "on rank 1");
  refused(
      [](auto& layer, int rank) {
        if (rank == 2)
          layer.bias.set_data(torch::ones({2}, at::kDouble));
      },
      "of one type in a module, got Float and Double (rank 2)");
  refused([](auto& layer, int) { layer.bias.set_data(torch::ones({2}, at::kBFloat16)); },
          "of one type");
}

}  // namespace
}  // namespace muster::testing
