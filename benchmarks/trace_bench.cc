// What a rank's activity file and --trace cost: training steps of a GPT with and without them, in turns, in
// one process, so that both see the same machine.
//
//   muster run --trace -n 2 --run-dir FOLDER build/release/benchmarks/trace_bench
//
// Prints the median step of each, and last the median ratio of neighbouring steps, with over without. Started
// without --trace it is the activity file alone.
#include <muster/muster.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>

#include "examples/02_gpt/gpt.h"
#include "muster/base/clock.h"
#include "muster/trace/activity.h"

namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void measure(muster::Context& ctx) {
  constexpr int kPairs = 150;
  ctx.seed_all(1);
  Gpt net(GptOptions{.vocabulary = 64, .layers = 2, .heads = 2, .width = 64, .context = 32});
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  muster::TrainStep step(model, optimizer);
  const auto text = torch::randint(64, {4, 32});
  const auto take_step = [&] {
    ctx.process_group().barrier();
    const auto began = muster::Clock::now();
    step.run(1, true, [&] { return torch::cross_entropy_loss(model(text).flatten(0, 1), text.flatten()); });
    return muster::seconds_since(began);
  };
  muster::Activity* const activity = muster::Activity::get();
  if (activity == nullptr)
    throw muster::Error(muster::ErrorCode::failed_precondition, "trace_bench: start it by muster run");
  for (int i = 0; i < 20; ++i) take_step();
  std::vector<double> with, without, ratios;
  for (int i = 0; i < 2 * kPairs; ++i) {
    const bool is_on = i % 4 == 0 || i % 4 == 3;  // on, off, off, on
    muster::Activity::set(is_on ? activity : nullptr);
    (is_on ? with : without).push_back(take_step());
    if (i % 2 == 1) ratios.push_back(with.back() / without.back());
  }
  muster::Activity::set(activity);
  if (!ctx.is_main()) return;
  std::cout << "step without " << median(without) * 1e3 << " ms, with " << median(with) * 1e3 << " ms\n"
            << "median ratio " << median(ratios) << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, measure);
}
