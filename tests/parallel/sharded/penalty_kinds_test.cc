// A WGAN-GP's gradient penalty over a fully sharded critic that computes in bf16, or whose parts
// are repeated on other ranks, beside one process.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/parallel/mesh.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/parallel/sharded/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

template <class Critic>
void train_with_penalty(const Critic& critic,
                        const std::vector<at::Tensor>& parameters,
                        int rank,
                        int ranks) {
  torch::optim::SGD optimizer(parameters, 0.01);
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto x = mlp_batch(step).of(rank, ranks).x;
    const auto between = (0.3 * x).requires_grad_();
    const auto gradient = torch::autograd::grad({critic(between).sum()},
                                                {between},
                                                {},
                                                /*retain_graph=*/true,
                                                /*create_graph=*/true)[0];
    const auto penalty = 10 * (gradient.norm(2, 1) - 1).square().mean();
    (critic(-x).mean() - critic(x).mean() + penalty).backward();
    optimizer.step();
  }
}

// The largest change of a number over the training.
float trained_far(const torch::nn::Sequential& trained) {
  return farthest_apart(sharded_mlp()->parameters(), trained->parameters());
}

torch::nn::Sequential critic_of_one_process() {
  auto plain = sharded_mlp();
  train_with_penalty(
      [&](const at::Tensor& x) { return plain->forward(x); }, plain->parameters(), 0, 1);
  return plain;
}

void expect_trained_alike(ProcessGroup& group,
                          ProcessGroup parts,
                          const FullyShardedOptions& options,
                          const torch::nn::Sequential& plain,
                          float apart) {
  auto net = sharded_mlp();
  FullySharded sharded(parts, options);
  LayeredMlpImpl model(net, sharded);
  const auto type = options.compute_dtype.value_or(at::kFloat);
  train_with_penalty([&](const at::Tensor& x) { return model.forward(x.to(type)).to(at::kFloat); },
                     sharded.parameters(),
                     group.rank(),
                     group.size());
  const auto whole = sharded.whole_parameters();
  EXPECT_LE(farthest_apart(plain->parameters(), net->parameters()), apart);
}

TEST(PenaltyKinds, PartsThatOtherRanksHaveTooAreThoseOfOneProcess) {
  at::set_num_threads(1);
  const auto plain = critic_of_one_process();
  run_ranks(4, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"copies", 2}, {"parts", 2}});
    expect_trained_alike(
        group, mesh.group("parts"), {.replicate_group = mesh.group("copies")}, plain, 5e-6F);
  });
}

// bf16 has 8 bits. What a lost second derivative would change is as large as the change itself.
TEST(PenaltyKinds, Bfloat16IsNearOneProcess) {
  at::set_num_threads(1);
  const auto plain = critic_of_one_process();
  const float far = trained_far(plain);
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      expect_trained_alike(group, group, {.compute_dtype = at::kBFloat16}, plain, 0.05F * far);
    });
  }
}

}  // namespace
}  // namespace muster::testing
