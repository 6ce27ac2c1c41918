// What the parts of muster/train cost beside a training step.
//
//   train_bench [PARAMETERS]      10000000, in 20 layers; and 2 ranks, threads of this process
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "muster/base/clock.h"
#include "muster/train/clip.h"
#include "muster/train/metrics.h"
#include "muster/train/step.h"
#include "tests/support/ranks.h"

namespace {

constexpr int kRounds = 5;

double least_us(int calls, const std::function<void()>& call) {
  call();
  double best = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = muster::Clock::now();
    for (int i = 0; i < calls; ++i)
      call();
    best = std::min(best, muster::seconds_since(start) / calls * 1e6);
  }
  return best;
}

void row(const char* what, double us) {
  std::printf("  %-58s %10.1f us\n", what, us);
}

torch::nn::Sequential layers_of(int64_t parameters) {
  const auto width =
      std::max<int64_t>(1, static_cast<int64_t>(std::sqrt(static_cast<double>(parameters) / 20)));
  torch::nn::Sequential net;
  for (int i = 0; i < 20; ++i)
    net->push_back(torch::nn::Linear(width, width));
  for (const auto& parameter : net->parameters())
    parameter.mutable_grad() = torch::randn_like(parameter);
  return net;
}

void time_passes(int64_t parameters) {
  auto net = layers_of(parameters);
  const std::vector<at::Tensor> all = net->parameters();
  torch::optim::AdamW optimizer(all, 1e-6);
  muster::Ema ema(*net, 0.99);
  muster::Precision precision(at::kCPU, "fp16");
  std::printf("%lld parameters in 20 layers, fp32, one thread; least of %d means\n",
              static_cast<long long>(parameters),
              kRounds);
  row("AdamW, for comparison", least_us(3, [&] { optimizer.step(); }));
  row("clip_grad_norm", least_us(3, [&] { muster::clip_grad_norm(all, 1.0); }));
  row("Ema::update", least_us(3, [&] { ema.update(); }));
  row("Precision::unscale and update", least_us(3, [&] {
        precision.unscale(all);
        precision.update();
      }));
}

void time_step(muster::ProcessGroup& group, bool prints) {
  torch::nn::Linear net(8, 8);
  muster::DistributedDataParallel model(net, group);
  torch::optim::SGD optimizer(model.parameters(), 1e-3);
  const auto data = torch::randn({4, 8});
  const auto loss_of = [&] {
    return model(data).square().mean();
  };
  const double plain = least_us(300, [&] {
    loss_of().backward();
    optimizer.step();
    optimizer.zero_grad();
  });
  muster::TrainStep ignoring(model, optimizer, {.on_nonfinite = muster::OnNonfinite::ignore});
  const double ignore = least_us(300, [&] { ignoring.run(1, true, loss_of); });
  muster::TrainStep stopping(model, optimizer);
  const double stop = least_us(300, [&] { stopping.run(1, true, loss_of); });
  muster::Metrics metrics(group, {});
  const auto loss = torch::ones({});
  const double add = least_us(300, [&] { metrics.mean("loss", loss, 4); });
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"})
    metrics.mean(name, 1.0, 1);
  const double write = least_us(300, [&] {
    metrics.mean("loss", loss, 4);
    metrics.write(1);
  });
  if (!prints)
    return;
  std::printf("a step of a linear layer with 72 parameters, %d ranks over %s\n",
              group.size(),
              group.backend().c_str());
  row("the plain loop", plain);
  row("TrainStep, on_nonfinite = ignore", ignore);
  row("TrainStep, on_nonfinite = stop: asks the ranks", stop);
  row("Metrics::mean", add);
  row("Metrics::write of 8 names: asks the ranks", write);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  time_passes(argc > 1 ? std::max(20LL, std::atoll(argv[1])) : 10'000'000);
  muster::testing::run_ranks(
      2, [](muster::ProcessGroup& group) { time_step(group, group.rank() == 0); });
}
