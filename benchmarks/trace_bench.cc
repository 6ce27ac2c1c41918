// What a rank's activity file and --trace cost: training steps of a GPT with and without them, in
// turns, in one process, so that both see the same machine.
//
//   muster run --trace -n 2 --run-dir FOLDER build/release/benchmarks/trace_bench
//
// Prints the median step of each, and the median ratio of neighbouring steps, with over without:
// what is looked for is less than what one run differs from the next by. So with --trace last how
// many events a step has, what one costs in a loop of spans, and which part of a step that is.
// Started without --trace it is the activity file alone.
#include <muster/muster.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>

#include "examples/02_gpt/gpt.h"
#include "muster/base/clock.h"
#include "muster/trace/activity.h"
#include "muster/trace/span.h"

namespace {

double median(std::vector<double> values) {
  std::nth_element(
      values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Units: nanoseconds of a span's begin and end, in the median of some thousands together.
double span_cost() {
  constexpr int kSpans = 1000;
  std::vector<double> costs;
  for (int i = 0; i < 101; ++i) {
    const auto began = muster::Clock::now();
    for (int k = 0; k < kSpans; ++k)
      const muster::Span span("bench");
    costs.push_back(muster::seconds_since(began) / kSpans * 1e9);
  }
  std::cout << "dearest thousand " << *std::max_element(costs.begin(), costs.end())
            << " ns a span\n";
  return median(costs);
}

void measure(muster::Context& ctx) {
  constexpr int kPairs = 600;
  ctx.seed_all(1);
  Gpt net(GptOptions{.vocabulary = 64, .layers = 2, .heads = 2, .width = 64, .context = 32});
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  muster::TrainStep step(model, optimizer);
  const auto text = torch::randint(64, {4, 32});
  const auto take_step = [&] {
    ctx.process_group().barrier();
    const auto began = muster::Clock::now();
    step.run(1, true, [&] {
      return torch::cross_entropy_loss(model(text).flatten(0, 1), text.flatten());
    });
    return muster::seconds_since(began);
  };
  muster::Activity* const activity = muster::Activity::get();
  if (activity == nullptr)
    throw muster::Error(muster::ErrorCode::failed_precondition,
                        "trace_bench: start it by muster run");
  for (int i = 0; i < 20; ++i)
    take_step();
  std::vector<double> with, without, ratios;
  for (int i = 0; i < 2 * kPairs; ++i) {
    const bool is_on = i % 4 == 0 || i % 4 == 3;  // on, off, off, on
    muster::Activity::set(is_on ? activity : nullptr);
    (is_on ? with : without).push_back(take_step());
    if (i % 2 == 1)
      ratios.push_back(with.back() / without.back());
  }
  muster::Activity::set(activity);
  muster::TraceEventFile* const events = activity->events();
  const uint64_t before = events == nullptr ? 0 : events->count();
  constexpr int kSteps = 100;
  for (int i = 0; i < kSteps; ++i)
    take_step();
  const double events_a_step =
      events == nullptr ? 0 : static_cast<double>(events->count() - before) / kSteps;
  if (!ctx.is_main())
    return;
  std::cout << "step without " << median(without) * 1e3 << " ms, with " << median(with) * 1e3
            << " ms\n"
            << "median ratio " << median(ratios) << std::endl;
  if (events == nullptr)
    return;
  const double cost = span_cost();
  std::cout << events_a_step << " events a step, " << cost
            << " ns a span: " << events_a_step * cost * 1e-9 / median(without) * 100
            << " % of a step" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, measure);
}
