// Parameters that got memory of their own after sharding by set_data(), as from
// vector_to_parameters: they are trained, and keep what was put into them. (torch::load itself:
// loaded_models_test.cc)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGD;

void load_values(torch::nn::Module& model, double value) {
  for (at::Tensor parameter : model.parameters())
    parameter.set_data(torch::full(parameter.sizes(), value, torch::kFloat));
}

// After one SGD step at rate 0.1.
std::vector<at::Tensor> one_step_of(torch::nn::Sequential model, double value) {
  load_values(*model, value);
  SGD optimizer(model->parameters(), 0.1);
  const auto batch = mlp_batch(0);
  sharded_loss(model->forward(batch.x), batch.y).backward();
  optimizer.step();
  return model->parameters();
}

void expect_near_to(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& got) {
  ASSERT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE((expected[i] - got[i]).abs().max().item<float>(), 1e-6) << i;
}

TEST(ReplacedMemory, OfAShardedOptimizerIsTrained) {
  at::set_num_threads(1);
  const auto expected = one_step_of(sharded_mlp(), 0.01);
  for (const bool gradients : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      auto model = sharded_mlp();
      ShardedOptimizer<SGD> optimizer(model->parameters(), 0.1, group, {.gradients = gradients});
      load_values(*model, 0.01);
      const auto batch = mlp_batch(0);
      sharded_loss(model->forward(batch.x), batch.y).backward();
      optimizer.step();
      expect_near_to(expected, model->parameters());
    });
  }
}

TEST(ReplacedMemory, OfAFullyShardedModelIsTrained) {
  at::set_num_threads(1);
  const auto expected = one_step_of(sharded_mlp(), 0.01);
  for (const bool inside : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      FullySharded sharded(group);
      auto mlp = sharded_mlp();
      LayeredMlpImpl model(mlp, sharded);
      SGD optimizer(sharded.parameters(), 0.1);
      {
        const auto whole = inside ? sharded.whole_parameters() : nullptr;
        load_values(*mlp, 0.01);
      }
      const auto batch = mlp_batch(0);
      sharded_loss(model.forward(batch.x), batch.y).backward();
      optimizer.step();
      const auto whole = sharded.whole_parameters();
      expect_near_to(expected, mlp->parameters());
    });
  }
}

TEST(ReplacedMemory, BeforeTheyAreWholeIsKept) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group, {.compute_dtype = torch::kBFloat16});
    torch::nn::Linear layer(5, 3);
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor parameter : layer->parameters())
        parameter.fill_(1);
    }
    auto model = sharded.wrap(layer);
    load_values(*layer, 0.3);  // fp32, where bf16 was
    {
      const auto whole = sharded.whole_parameters();
      for (const at::Tensor& parameter : layer->parameters())
        EXPECT_TRUE(parameter.eq(0.3F).all().item<bool>());
    }
    load_values(*layer, 0.7);
    model(torch::ones({2, 5}, torch::kBFloat16)).sum().backward();
    for (const at::Tensor& part : sharded.parameters()) {
      EXPECT_TRUE(part.eq(0.7F).all().item<bool>());
      EXPECT_TRUE(part.grad().defined());
    }
  });
}

TEST(ReplacedMemory, OfAnotherShapeIsRefused) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear whole(3, 2), divided(3, 2);
    for (at::Tensor parameter : whole->parameters())
      parameter.data().fill_(1);
    for (at::Tensor parameter : divided->parameters())
      parameter.data().fill_(1);
    ShardedOptimizer<SGD> optimizer(whole->parameters(), 0.1, group);
    whole->weight.set_data(torch::ones({4, 3}));
    EXPECT_THROW(optimizer.step(), Error);
    FullySharded sharded(group);
    auto model = sharded.wrap(divided);
    {
      const auto guard = sharded.whole_parameters();
      divided->weight.set_data(torch::ones({4, 3}));
    }
    try {
      model(torch::ones({1, 3}));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("got Float [4, 3] on cpu"));
    }
  });
}

}  // namespace
}  // namespace muster::testing
