// What it costs to keep the state of each step in memory (`muster run --on-failure replace`),
// beside the step: of a model that every rank has whole, and of one that is divided, whose parts a
// neighbour keeps too.
//
//   MUSTER_NPROC=2 keep_bench [--width N] [--layers N] [--steps N] [--threads N]
//
// Prints medians of rank 0, in milliseconds, and the state's size. The model is `layers` linear
// layers of width × width with AdamW; a step has 32 samples.
#include <muster/muster.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

struct KeepOptions {
  int64_t width = 1024, layers = 8, steps = 30;
  int threads = 1;
};

class Median {
 public:
  template <class Call>
  void time(const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    times_.push_back(taken.count());
  }
  double value() {
    std::sort(times_.begin(), times_.end());
    return times_.at(times_.size() / 2);
  }

 private:
  std::vector<double> times_;
};

torch::nn::Sequential layers_of(const KeepOptions& options) {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < options.layers; ++i)
    net->push_back(torch::nn::Linear(options.width, options.width));
  return net;
}

// A step, and what follows it: both are timed, but for the first steps, in which memory is new.
template <class Step>
void measure(muster::Context& ctx,
             const KeepOptions& options,
             const char* way,
             int64_t bytes,
             muster::Checkpoints& checkpoints,
             const Step& step) {
  constexpr int64_t kWarmUp = 5;
  Median steps, keeping;
  for (int64_t i = 1; i <= options.steps + kWarmUp; ++i) {
    const auto x = torch::randn({32, options.width});
    Median first;
    auto& of_steps = i <= kWarmUp ? first : steps;
    of_steps.time([&] { step(x); });
    ctx.process_group().barrier();
    (i <= kWarmUp ? first : keeping).time([&] { checkpoints.save_when_due(i); });
  }
  if (!ctx.is_main())
    return;
  std::printf("%s: a rank has %.0f MB of weights and moments; a step %.1f ms, keeping it %.1f ms\n",
              way,
              static_cast<double>(bytes) / 1e6,
              steps.value(),
              keeping.value());
  std::fflush(stdout);
}

void bench(muster::Context& ctx, const KeepOptions& options) {
  at::set_num_threads(options.threads);
  ctx.seed_all(1);
  const auto group = ctx.process_group();
  const int64_t elements = options.layers * options.width * (options.width + 1);
  const auto loss_of = [](const torch::Tensor& y) {
    return y.square().mean();
  };
  {
    auto net = layers_of(options);
    torch::optim::AdamW optimizer(net->parameters(), 1e-4);
    muster::DistributedDataParallel model(net.ptr(), group);
    muster::Checkpoints checkpoints(ctx, {.in_memory = 1});
    checkpoints.add("model", net.ptr()).add("optimizer", optimizer);
    measure(ctx, options, "whole", elements * 12, checkpoints, [&](const torch::Tensor& x) {
      optimizer.zero_grad();
      loss_of(model(x)).backward();
      optimizer.step();
    });
  }
  auto net = layers_of(options);
  muster::FullySharded sharded(group);
  auto model = sharded.wrap(net);
  torch::optim::AdamW optimizer(sharded.parameters(), 1e-4);
  muster::Checkpoints checkpoints(ctx, {.in_memory = 1, .in_memory_of_neighbours = true});
  checkpoints.add("model", sharded.pieces(*net)).add("optimizer", optimizer, sharded.pieces(*net));
  measure(ctx,
          options,
          "divided",
          elements * 12 / group.size(),
          checkpoints,
          [&](const torch::Tensor& x) {
            optimizer.zero_grad();
            loss_of(model(x)).backward();
            optimizer.step();
          });
}

}  // namespace

int main(int argc, char** argv) {
  KeepOptions options;
  CLI::App app("What keeping each step in memory costs");
  app.add_option("--width", options.width, "of the layers");
  app.add_option("--layers", options.layers, "their number");
  app.add_option("--steps", options.steps, "that are timed");
  app.add_option("--threads", options.threads, "of a rank");
  CLI11_PARSE(app, argc, argv);
  return muster::run(argc, argv, [&](muster::Context& ctx) { bench(ctx, options); });
}
