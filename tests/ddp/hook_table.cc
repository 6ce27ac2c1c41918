// Trains a small model for ten steps with each communication hook, and writes every step's
// gradients as they lie in memory, a file a hook. hook_table.py does the same in Python;
// compare_hooks.py compares.
#include <muster/muster.h>
#include <torch/torch.h>

#include <fstream>

#include "tests/support/twin.h"

namespace {

constexpr int kHookSteps = 10;
constexpr int64_t kHookBatch = 8;

torch::nn::Sequential hooked_net() {
  torch::manual_seed(11);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(24, 48));
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Linear(48, 48));
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Linear(48, 5));
  return net;
}

muster::Hook average_by_function() {
  return [](muster::GradientBucket bucket) {
    bucket.tensor.div_(bucket.group.size());
    bucket.group.all_reduce(bucket.tensor);
    return bucket.tensor;
  };
}

std::vector<std::pair<std::string, muster::Hook>> hooks() {
  return {
      {"none", {}},
      {"average", muster::plain_average()},
      {"function", average_by_function()},
      {"fp16", muster::fp16_compression()},
      {"bf16", muster::bf16_compression()},
      {"powersgd_1", muster::power_sgd({.start_step = 2})},
      {"powersgd_2_late", muster::power_sgd({.matrix_rank = 2, .start_step = 5})},
      {"powersgd_4_qr", muster::power_sgd({.matrix_rank = 4, .start_step = 3, .seed = 7})},
      {"powersgd_cold",
       muster::power_sgd({.matrix_rank = 2, .start_step = 2, .warm_start = false})},
      {"powersgd_no_error", muster::power_sgd({.start_step = 2, .error_feedback = false})},
      {"powersgd_epsilon", muster::power_sgd({.start_step = 2, .orthogonalization_epsilon = 1e-8})},
      {"top_k", muster::top_k({.density = 0.1})},
      {"top_k_no_error", muster::top_k({.density = 0.05, .error_feedback = false})},
      {"quantized_512", muster::quantized_8bit()},
      {"quantized_64", muster::quantized_8bit({.block = 64})},
      {"quantized_whole", muster::quantized_8bit({.block = 0})}};
}

void train_with_hook(muster::Context& ctx, const std::string& name, const muster::Hook& hook) {
  torch::manual_seed(3);
  const auto features = torch::randn({400, 24}).to(ctx.device());
  const auto labels = torch::randint(5, {400}).to(ctx.device());
  auto net = hooked_net();
  net->to(ctx.device());
  // Some buckets, of some gradients each.
  muster::DistributedDataParallel model(
      net, ctx.process_group(), {.bucket_cap_mb = 0.01, .hook = hook});
  torch::optim::SGD optimizer(model.parameters(), 0.5);
  std::ofstream file(muster::cat(muster::test::twin_folder(), "/ours-", ctx.rank(), "-", name),
                     std::ios::binary);
  for (int step = 0; step < kHookSteps; ++step) {
    const int64_t begin = (step * ctx.world_size() + ctx.rank()) * kHookBatch % 392;
    optimizer.zero_grad();
    torch::cross_entropy_loss(model(features.slice(0, begin, begin + kHookBatch)),
                              labels.slice(0, begin, begin + kHookBatch))
        .backward();
    for (const auto& parameter : model.parameters()) {
      const auto gradient = parameter.grad().contiguous().cpu();
      file.write(static_cast<const char*>(gradient.const_data_ptr()),
                 static_cast<std::streamsize>(gradient.nbytes()));
    }
    optimizer.step();
  }
  if (!file.flush())
    throw std::runtime_error("cannot write the gradients of " + name);
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    for (const auto& [name, hook] : hooks())
      train_with_hook(ctx, name, hook);
  });
}
