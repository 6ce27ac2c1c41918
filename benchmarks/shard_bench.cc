// Steps of a GPT whose parameters, gradients and optimizer state are divided over the ranks.
// shard_bench.sh runs it beside PyTorch's fully_shard (shard_bench.py), on the same model. Prints
// milliseconds a step, the median.
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

#include "examples/02_gpt/gpt.h"
#include "muster/base/clock.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "muster/run/run.h"

namespace {

constexpr int64_t kVocabulary = 512, kContext = 64, kBatch = 4;
constexpr int kWarmup = 3, kSteps = 15;

Gpt make_gpt() {
  torch::manual_seed(1);
  return Gpt(GptOptions{
      .vocabulary = kVocabulary, .layers = 4, .heads = 4, .width = 256, .context = kContext});
}

struct BlockedGpt : torch::nn::Module {
  BlockedGpt(Gpt gpt_, muster::FullySharded& sharded) : gpt(register_module("gpt", gpt_)) {
    for (const auto& block : *gpt->blocks)
      blocks.push_back(sharded.wrap(std::dynamic_pointer_cast<GptBlockImpl>(block)));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = gpt->token(tokens) + gpt->position.narrow(0, 0, tokens.size(1));
    for (auto& block : blocks)
      x = block(x);
    return gpt->head(gpt->norm(x));
  }
  Gpt gpt;
  std::vector<muster::FullyShardedModule<std::shared_ptr<GptBlockImpl>>> blocks;
};

template <class Forward>
void measure(const char* name,
             muster::ProcessGroup& group,
             Forward forward,
             torch::optim::Optimizer& optimizer,
             const std::function<void()>& zero_grad) {
  const auto tokens = torch::randint(kVocabulary, {kBatch, kContext + 1}, at::kLong);
  const auto x = tokens.narrow(1, 0, kContext), y = tokens.narrow(1, 1, kContext);
  std::vector<double> times;
  for (int step = 0; step < kWarmup + kSteps; ++step) {
    group.barrier();
    const auto begin = muster::Clock::now();
    zero_grad();
    next_token_loss(forward(x), y).backward();
    optimizer.step();
    if (step >= kWarmup)
      times.push_back(1e3 * muster::seconds_since(begin));
  }
  std::nth_element(times.begin(), times.begin() + kSteps / 2, times.end());
  if (group.rank() == 0)
    std::printf("%s %.2f\n", name, times[kSteps / 2]);
}

void train(muster::Context& ctx) {
  at::set_num_threads(1);
  muster::ProcessGroup& group = ctx.process_group();
  const torch::optim::AdamWOptions options(1e-3);
  {
    muster::FullySharded sharded(group);
    auto model = sharded.wrap(std::make_shared<BlockedGpt>(make_gpt(), sharded));
    torch::optim::AdamW optimizer(sharded.parameters(), options);
    measure(
        "full",
        group,
        [&](const auto& x) { return model(x); },
        optimizer,
        [&] { optimizer.zero_grad(); });
  }
  {
    auto gpt = make_gpt();
    muster::ShardedOptimizer<torch::optim::AdamW> optimizer(
        gpt->parameters(), options, group, {.gradients = true});
    measure(
        "zero2",
        group,
        [&](const auto& x) { return gpt(x); },
        optimizer,
        [&] { optimizer.zero_grad(); });
  }
  {
    auto gpt = make_gpt();
    muster::DistributedDataParallel model(gpt, group);
    muster::ShardedOptimizer<torch::optim::AdamW> optimizer(gpt->parameters(), options, group);
    measure(
        "zero1",
        group,
        [&](const auto& x) { return model(x); },
        optimizer,
        [&] { optimizer.zero_grad(); });
  }
  {
    auto gpt = make_gpt();
    muster::DistributedDataParallel model(gpt, group);
    torch::optim::AdamW optimizer(gpt->parameters(), options);
    measure(
        "ddp",
        group,
        [&](const auto& x) { return model(x); },
        optimizer,
        [&] { optimizer.zero_grad(); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, train);
}
