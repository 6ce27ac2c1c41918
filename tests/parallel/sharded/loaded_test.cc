// Weights that the program puts into a fully sharded model, by the calls that put them: they are
// trained on all ranks, or refused on all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>

#include "muster/base/strings.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGD;

torch::nn::Sequential other_mlp(double scale) {
  auto net = sharded_mlp();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters())
    parameter.mul_(scale);
  return net;
}

struct SavedNet {
  explicit SavedNet(double scale)
      : path(
            (std::filesystem::temp_directory_path() / cat("loaded-", ::getpid(), "-", scale, ".pt"))
                .string()) {
    torch::save(other_mlp(scale), path);
  }
  ~SavedNet() { std::filesystem::remove(path); }
  SavedNet(const SavedNet&) = delete;
  SavedNet& operator=(const SavedNet&) = delete;
  const std::string path;
};

// Two steps, a load, three more.
template <class Net, class Forward>
std::vector<float> losses_with_a_load(ProcessGroup* group,
                                      Net& net,
                                      torch::optim::Optimizer& optimizer,
                                      const Forward& forward,
                                      const std::function<void(Net&)>& load) {
  at::set_num_threads(1);
  std::vector<float> losses;
  for (int64_t step = 0; step < 5; ++step) {
    if (step == 2)
      load(net);
    const auto batch =
        group == nullptr ? mlp_batch(step) : mlp_batch(step).of(group->rank(), group->size());
    optimizer.zero_grad();
    const auto loss = sharded_loss(forward(batch.x), batch.y);
    loss.backward();
    optimizer.step();
    losses.push_back(group == nullptr ? loss.template item<float>() : mean_loss(loss, *group));
  }
  return losses;
}

using Load = std::function<void(torch::nn::Sequential&)>;

void expect_losses_of_one_process(const Load& load, bool in_guard) {
  auto plain = sharded_mlp();
  SGD alone(plain->parameters(), 0.1);
  const auto expected = losses_with_a_load<torch::nn::Sequential>(
      nullptr, plain, alone, [&](const torch::Tensor& x) { return plain->forward(x); }, load);
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = sharded_mlp();
    FullySharded sharded(group);
    LayeredMlpImpl model(net, sharded);
    SGD optimizer(sharded.parameters(), 0.1);
    const auto losses = losses_with_a_load<torch::nn::Sequential>(
        &group,
        net,
        optimizer,
        [&](const torch::Tensor& x) { return model.forward(x); },
        [&](torch::nn::Sequential& to) {
          const auto whole = in_guard ? sharded.whole_parameters() : nullptr;
          load(to);
        });
    EXPECT_LE(largest_difference(expected, losses), 2e-6);
  });
}

TEST(LoadedWeights, OfTorchLoadAreTrained) {
  const SavedNet saved(0.5);
  for (const bool in_guard : {false, true})
    expect_losses_of_one_process([&](torch::nn::Sequential& net) { torch::load(net, saved.path); },
                                 in_guard);
}

TEST(LoadedWeights, OfVectorToParametersAreTrained) {
  const auto vector = torch::nn::utils::parameters_to_vector(other_mlp(0.5)->parameters()).detach();
  for (const bool in_guard : {false, true}) {
    expect_losses_of_one_process(
        [&](torch::nn::Sequential& net) {
          torch::nn::utils::vector_to_parameters(vector.clone(), net->parameters());
        },
        in_guard);
  }
}

// After a forward, so that the next one's calls are no news.
void load_on_one_rank(ProcessGroup& group, const std::string& path, bool in_guard) {
  auto net = sharded_mlp();
  FullySharded sharded(group);
  LayeredMlpImpl model(net, sharded);
  const torch::NoGradGuard no_grad;
  model.forward(mlp_batch(0).x);
  {
    const auto whole = in_guard ? sharded.whole_parameters() : nullptr;
    if (group.rank() == 0)
      torch::load(net, path);
  }
  model.forward(mlp_batch(0).x);
}

TEST(LoadedWeights, ThatOneRankHasAloneAreRefused) {
  const SavedNet saved(0.5);
  for (const bool in_guard : {false, true}) {
    for (const char* const backend : {"shm", "gloo"}) {
      const auto failures = failures_of_ranks(
          2,
          [&](ProcessGroup& group) { load_on_one_rank(group, saved.path, in_guard); },
          {.backend = backend});
      EXPECT_THAT(message_of(failures[0]), HasSubstr("the same on every rank, got others of '"))
          << backend;
      EXPECT_NE(message_of(failures[1]), "") << backend;
    }
  }
}

TEST(LoadedWeights, OfTwoFilesAreRefused) {
  const SavedNet saved(0.5), other(0.25);
  for (const bool in_guard : {false, true}) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      auto net = sharded_mlp();
      FullySharded sharded(group);
      LayeredMlpImpl model(net, sharded);
      {
        const auto whole = in_guard ? sharded.whole_parameters() : nullptr;
        torch::load(net, group.rank() == 0 ? saved.path : other.path);
      }
      model.forward(mlp_batch(0).x);
    });
    for (const auto& failure : failures)
      EXPECT_THAT(message_of(failure), HasSubstr("the same on every rank"));
  }
}

// New values between a backward and its step are stepped from.
TEST(LoadedWeights, BeforeAStepAreStepped) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = sharded_mlp();
    FullySharded sharded(group);
    LayeredMlpImpl model(net, sharded);
    SGD optimizer(sharded.parameters(), 0.1);
    sharded_loss(model.forward(mlp_batch(0).x), mlp_batch(0).y).backward();
    {
      const auto whole = sharded.whole_parameters();
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters())
        parameter.fill_(0.5);
    }
    optimizer.step();
    EXPECT_EQ(failure_text([&] { model.forward(mlp_batch(1).x); }), "nothing");
  });
}

// What pieces() gives to checkpoints and averages has them before a forward.
TEST(LoadedWeights, AreInThePiecesAtOnce) {
  const SavedNet saved(0.5);
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = sharded_mlp();
    FullySharded sharded(group);
    LayeredMlpImpl model(net, sharded);
    torch::load(net, saved.path);
    const auto expected = other_mlp(0.5)->named_parameters();
    for (const TensorPiece& piece : sharded.pieces(*net)) {
      const auto all = expected[piece.name].detach().flatten();
      const auto own = all.narrow(0, piece.elements[0].begin, piece.elements[0].length);
      EXPECT_TRUE(torch::equal(piece.tensor.detach(), own)) << piece.name;
    }
    const auto whole = sharded.whole_parameters();
    sharded.pieces(*net);
    EXPECT_EQ(farthest_apart(net->parameters(), other_mlp(0.5)->parameters()), 0);
  });
}

// A file of floats for a model that is gathered in another type.
TEST(LoadedWeights, OfAnotherTypeAreLoadedIntoWholeParameters) {
  const SavedNet saved(0.5);
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = sharded_mlp(), second = sharded_mlp();
    FullySharded sharded(group, {.compute_dtype = torch::kBFloat16});
    LayeredMlpImpl model(net, sharded), other(second, sharded);
    const auto x = mlp_batch(0).x.to(torch::kBFloat16);
    const torch::NoGradGuard no_grad;
    {
      const auto whole = sharded.whole_parameters();
      torch::load(net, saved.path);
    }
    model.forward(x);
    {
      const auto whole = sharded.whole_parameters();
      EXPECT_EQ(farthest_apart(net->parameters(), other_mlp(0.5)->parameters()), 0);
    }
    EXPECT_THAT(failure_text([&] {
                  torch::load(second, saved.path);
                  other.forward(x);
                }),
                HasSubstr("call torch::load while whole_parameters() lives"));
  });
}

}  // namespace
}  // namespace muster::testing
