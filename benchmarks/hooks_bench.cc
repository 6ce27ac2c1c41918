// What each communication hook sends and what it does to training: the digits and a small GPT, on
// the same number of ranks, steps and seeds. Prints the table of docs/performance.md:
//
//   muster run --nproc-per-node 2 --cpu-slots 2 build/release/benchmarks/hooks_bench
#include <muster/muster.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>

#include "examples/01_train/model.h"
#include "examples/02_gpt/gpt.h"
#include "examples/02_gpt/text.h"

namespace {

struct Outcome {
  double bytes_a_step = 0, seconds = 0, result = 0;
};

using MakeHook = std::function<muster::Hook()>;

// Times steps, and says what one of them has sent.
class Meter {
 public:
  Meter(muster::Hook hook, const std::vector<at::Tensor>& parameters) : hook_(std::move(hook)) {
    for (const auto& parameter : parameters)
      plain_bytes_ += static_cast<double>(parameter.nbytes());
  }
  void step() { ++steps_; }
  Outcome outcome(double result) const {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin_;
    const double bytes = hook_ ? static_cast<double>(hook_->bytes_sent()) / steps_ : plain_bytes_;
    return {bytes, time.count(), result};
  }

 private:
  muster::Hook hook_;
  double plain_bytes_ = 0;
  int steps_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

Outcome train_digits(muster::Context& ctx, const muster::Hook& hook) {
  const auto data = muster::read_digits(DIGITS_FILE);
  torch::manual_seed(0);
  Net net(data.train.features().size(2), data.train.features().size(3));
  muster::DistributedDataParallel model(net, ctx.process_group(), {.hook = hook});
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto sampler = ctx.sampler(data.train.size(), {.seed = 0});
  muster::DataLoader loader(data.train, sampler, {.batch_size = 16});
  Meter meter(hook, model.parameters());
  for (int64_t epoch = 0; epoch < 6; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& batch : loader) {
      torch::cross_entropy_loss(model(batch.features), batch.labels).backward();
      optimizer.step();
      optimizer.zero_grad();
      meter.step();
    }
  }
  Outcome outcome = meter.outcome(0);
  const torch::NoGradGuard no_grad;
  net->eval();
  outcome.result = net->forward(data.test.features())
                       .argmax(1)
                       .eq(data.test.labels())
                       .to(torch::kDouble)
                       .mean()
                       .item<double>();
  return outcome;
}

Outcome train_gpt(muster::Context& ctx, const muster::Hook& hook) {
  constexpr int64_t kSteps = 200, kBatch = 8;
  const GptOptions defaults;
  const Text text(TEXT_FILE, defaults.context);
  torch::manual_seed(0);
  Gpt net(GptOptions{.vocabulary = text.vocabulary(), .layers = 2, .width = 64});
  muster::DistributedDataParallel model(net, ctx.process_group(), {.hook = hook});
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-3));
  Meter meter(hook, model.parameters());
  const Windows everywhere(text.train(), defaults.context);
  auto windows = ctx.loader(
      everywhere, ctx.sampler(muster::pseudo_shuffled(everywhere.size())), {.batch_size = kBatch});
  for (const auto& batch : windows.steps(kSteps)) {
    next_token_loss(model(batch.tokens), batch.targets).backward();
    optimizer.step();
    optimizer.zero_grad();
    meter.step();
  }
  Outcome outcome = meter.outcome(0);
  const torch::NoGradGuard no_grad;
  const auto [tokens, targets] = Windows(text.validation(), defaults.context, 128)
                                     .get_batch(torch::arange(128), /*pinned=*/false);
  outcome.result = next_token_loss(net->forward(tokens), targets).item<double>();
  return outcome;
}

void print_table(muster::Context& ctx) {
  const std::vector<std::pair<std::string, MakeHook>> hooks{
      {"none", [] { return muster::Hook(); }},
      {"`fp16_compression`", muster::fp16_compression},
      {"`bf16_compression`", muster::bf16_compression},
      {"`power_sgd`, rank 1 from step 10", [] { return muster::power_sgd({.start_step = 10}); }},
      {"`power_sgd`, rank 4 from step 10",
       [] { return muster::power_sgd({.matrix_rank = 4, .start_step = 10}); }},
      {"`top_k`, density 0.01", [] { return muster::top_k(); }},
      {"`top_k`, density 0.1", [] { return muster::top_k({.density = 0.1}); }},
      {"`quantized_8bit`, blocks of 512", [] { return muster::quantized_8bit(); }}};
  if (ctx.is_main()) {
    std::printf(
        "| hook | digits: KiB a step | accuracy | s | GPT: KiB a step | validation loss | s |\n");
    std::printf("|---|---|---|---|---|---|---|\n");
  }
  for (const auto& [name, make] : hooks) {
    const Outcome digits = train_digits(ctx, make()), gpt = train_gpt(ctx, make());
    if (!ctx.is_main())
      continue;
    std::printf("| %s | %.1f | %.4f | %.1f | %.1f | %.3f | %.1f |\n",
                name.c_str(),
                digits.bytes_a_step / 1024,
                digits.result,
                digits.seconds,
                gpt.bytes_a_step / 1024,
                gpt.result,
                gpt.seconds);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) { print_table(ctx); });
}
