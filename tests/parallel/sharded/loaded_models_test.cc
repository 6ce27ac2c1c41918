// Values that a program puts into parameters whose optimizer is sharded, with the calls that
// programs make: the very next step is that of one process over the joined batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::Adam;

void scale(torch::nn::Module& model, double factor) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.parameters())
    parameter.mul_(factor);
}

std::string saved_mlp(double factor = 0.5) {
  auto model = sharded_mlp();
  scale(*model, factor);
  std::ostringstream stream;
  torch::save(model, stream);
  return stream.str();
}

void load_mlp(torch::nn::Sequential& model, double factor = 0.5) {
  std::istringstream stream(saved_mlp(factor));
  torch::load(model, stream);
}

// A way to put the values of a scaled model into another.
struct Way {
  const char* name;
  std::function<void(torch::nn::Sequential&)> put;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {"torch::load", [](torch::nn::Sequential& model) { load_mlp(model); }},
      {"vector_to_parameters",
       [](torch::nn::Sequential& model) {
         auto other = sharded_mlp();
         scale(*other, 0.5);
         torch::nn::utils::vector_to_parameters(
             torch::nn::utils::parameters_to_vector(other->parameters()).detach(),
             model->parameters());
       }},
      {"to() another type and back",
       [](torch::nn::Sequential& model) {
         load_mlp(model);
         model->to(torch::kDouble);
         model->to(torch::kFloat);
       }},
  };
  return all;
}

// `take` is a step on a batch: a forward, a backward and the optimizer's step.
std::vector<at::Tensor> train(torch::nn::Sequential& model,
                              const Way& way,
                              const std::function<void(const ShardedBatch&)>& take) {
  for (int64_t step = 0; step < 5; ++step) {
    if (step == 2)
      way.put(model);
    take(mlp_batch(step));
  }
  return model->parameters();
}

std::vector<at::Tensor> train_alone(const Way& way) {
  auto model = sharded_mlp();
  Adam optimizer(model->parameters(), 1e-2);
  return train(model, way, [&](const ShardedBatch& batch) {
    optimizer.zero_grad();
    sharded_loss(model->forward(batch.x), batch.y).backward();
    optimizer.step();
  });
}

void expect_values_near(const std::vector<at::Tensor>& expected,
                        const std::vector<at::Tensor>& got,
                        const std::string& what) {
  ASSERT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE((expected[i] - got[i]).abs().max().item<float>(), 1e-5)
        << what << ", parameter " << i;
}

TEST(LoadedShards, WholeGradientsTrainOnAsInOneProcess) {
  at::set_num_threads(1);
  for (const Way& way : ways()) {
    const auto expected = train_alone(way);
    run_ranks(2, [&](ProcessGroup& group) {
      auto model = sharded_mlp();
      DistributedDataParallel wrapped(model, group);
      ShardedOptimizer<Adam> optimizer(model->parameters(), 1e-2, group);
      const auto got = train(model, way, [&](const ShardedBatch& whole) {
        const auto batch = whole.of(group.rank(), 2);
        optimizer.zero_grad();
        sharded_loss(wrapped(batch.x), batch.y).backward();
        optimizer.step();
      });
      expect_values_near(expected, got, way.name);
    });
  }
}

TEST(LoadedShards, ShardedGradientsTrainOnAsInOneProcess) {
  at::set_num_threads(1);
  for (const Way& way : ways()) {
    const auto expected = train_alone(way);
    run_ranks(2, [&](ProcessGroup& group) {
      auto model = sharded_mlp();
      ShardedOptimizer<Adam> optimizer(model->parameters(), 1e-2, group, {.gradients = true});
      const auto got = train(model, way, [&](const ShardedBatch& whole) {
        const auto batch = whole.of(group.rank(), 2);
        optimizer.zero_grad();
        sharded_loss(model->forward(batch.x), batch.y).backward();
        for (const at::Tensor& parameter : model->parameters())
          EXPECT_EQ(parameter.grad().storage().nbytes(), 0);
        optimizer.step();
      });
      expect_values_near(expected, got, way.name);
    });
  }
}

// Without to(): between forwards a fully sharded model has no values to convert.
TEST(LoadedShards, FullyShardedParametersTrainOnAsInOneProcess) {
  at::set_num_threads(1);
  for (const Way& way : {ways()[0], ways()[1]}) {
    const auto expected = train_alone(way);
    run_ranks(2, [&](ProcessGroup& group) {
      FullySharded sharded(group);
      auto mlp = sharded_mlp();
      LayeredMlpImpl model(mlp, sharded);
      Adam optimizer(sharded.parameters(), 1e-2);
      train(mlp, way, [&](const ShardedBatch& joined) {
        const auto batch = joined.of(group.rank(), 2);
        optimizer.zero_grad();
        sharded_loss(model.forward(batch.x), batch.y).backward();
        optimizer.step();
      });
      const auto whole = sharded.whole_parameters();
      expect_values_near(expected, mlp->parameters(), way.name);
    });
  }
}

// What only one rank has loaded would be mixed with the others' parts.
TEST(LoadedShards, OnOneRankOnlyIsAnErrorOnBoth) {
  for (const bool gradients : {false, true}) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      auto model = sharded_mlp();
      ShardedOptimizer<Adam> optimizer(model->parameters(), 1e-2, group, {.gradients = gradients});
      if (group.rank() == 0)
        load_mlp(model);
      const auto batch = mlp_batch(0);
      sharded_loss(model->forward(batch.x), batch.y).backward();
      optimizer.step();
    });
    EXPECT_THAT(message_of(failures[0]), HasSubstr("load the same file on every rank"))
        << gradients;
    EXPECT_NE(message_of(failures[1]), "") << gradients;
  }
}

TEST(LoadedShards, OtherValuesOnOtherRanksAreAnErrorOnAll) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    auto model = sharded_mlp();
    ShardedOptimizer<Adam> optimizer(model->parameters(), 1e-2, group, {.gradients = true});
    load_mlp(model, 0.5 + group.rank());
    const auto batch = mlp_batch(0);
    sharded_loss(model->forward(batch.x), batch.y).backward();
    optimizer.step();
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("load the same file"));
}

// LibTorch's archive takes the memory that is there, and asks nobody.
TEST(LoadedShards, AFileThatWasSavedWithoutWholeParametersIsRefused) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group);
    auto net = sharded_mlp();
    const auto model = sharded.wrap(net);
    const auto loaded_after_save = [&] {
      std::stringstream stream;
      torch::save(net, stream);
      auto other = sharded_mlp();
      torch::load(other, stream);
      return other;
    };
    EXPECT_ANY_THROW(loaded_after_save());
    const auto whole = sharded.whole_parameters();
    EXPECT_TRUE(torch::equal(loaded_after_save()->parameters()[0], net->parameters()[0]));
  });
}

}  // namespace
}  // namespace muster::testing
