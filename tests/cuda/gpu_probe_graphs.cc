// Steps as CUDA graphs (GraphedStep): the bits of steps without, what they cost, and faults in
// them.
#include "gpu_probe.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "gpu_probe_costs.h"

namespace gpu_probe {
namespace {

using Rows = muster::Batch<at::Tensor>;

// Batches with other values each; every ninth has fewer rows, as the last of an epoch.
std::vector<Rows> batches_of(muster::Context& ctx, int64_t rows, int64_t width, int count) {
  torch::manual_seed(100 + ctx.rank());
  std::vector<Rows> batches;
  for (int i = 1; i <= count; ++i) {
    const int64_t size = i % 9 == 0 ? rows / 2 : rows;
    batches.push_back({torch::randn({size, width}).to(ctx.device()), 1, true, size, {}});
  }
  return batches;
}

// The losses of all steps and of two evaluations, and the parameters then. With `saved_after`, five
// steps later the model and the optimizer are set back to what they were then.
struct Trained {
  at::Tensor losses, parameters;
  int64_t replays = 0;
};

// Of a model with dropout and running statistics, whose rate changes in each step.
template <class Step, class Optimizer, class Options>
Trained trained_by(muster::Context& ctx,
                   const std::vector<Rows>& batches,
                   const Options& options,
                   int64_t saved_after = -1,
                   bool joins_norms = false) {
  const int64_t width = batches[0].size(1);
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(width, 2 * width),
                            torch::nn::BatchNorm1d(2 * width),
                            torch::nn::ReLU(),
                            torch::nn::Dropout(0.1),
                            torch::nn::Linear(2 * width, width));
  net->to(ctx.device());
  if (joins_norms)
    muster::convert_sync_batch_norm(*net, ctx.process_group());
  muster::DistributedDataParallel model(net, ctx.process_group());
  Optimizer optimizer(model.parameters(), options);
  // Rates that are float32 numbers, as a graph reads them.
  muster::Schedule schedule(
      optimizer,
      muster::Rate([](double rate, int64_t step) { return step % 3 == 0 ? rate : rate / 2; },
                   "halves"));
  muster::Ema ema(*net, 0.9);
  Step step(model, optimizer, {.clip_norm = 1.0, .schedule = &schedule, .ema = &ema});
  torch::manual_seed(8);
  std::vector<at::Tensor> losses;
  std::stringstream saved_model, saved_optimizer;
  for (const Rows& batch : batches) {
    if (step.steps() == saved_after) {
      torch::save(net, saved_model);
      torch::save(optimizer, saved_optimizer);
    }
    if (step.steps() == saved_after + 5 && saved_after > 0) {
      torch::load(net, saved_model);
      torch::load(optimizer, saved_optimizer);
    }
    if constexpr (std::is_same_v<Step, muster::TrainStep>) {
      losses.push_back(step(batch, [&] { return model(at::Tensor(batch)).square().mean(); }));
    } else {
      losses.push_back(
          step(batch, [&](const Rows& now) { return model(at::Tensor(now)).square().mean(); }));
    }
    losses.push_back(step.grad_norm().clone());
    // Before the capture and between replays, with the running statistics of all steps until then.
    if (step.steps() == muster::GraphedStep::kWarmUpSteps || step.steps() == 20) {
      const torch::NoGradGuard no_grad;
      net->eval();
      losses.push_back(model(at::Tensor(batches[0])).square().mean());
      net->train();
    }
  }
  std::vector<at::Tensor> all;
  for (const auto& tensor : net->parameters())
    all.push_back(tensor.detach().flatten());
  for (const auto& [name, average] : ema.averages())
    all.push_back(average.to(at::kFloat).flatten());
  Trained trained{.losses = torch::stack(losses).cpu(), .parameters = torch::cat(all).cpu()};
  if constexpr (std::is_same_v<Step, muster::GraphedStep>)
    trained.replays = step.replays();
  expect(step.steps() == std::ssize(batches), "all steps");
  return trained;
}

int64_t num_differing(const at::Tensor& one, const at::Tensor& other) {
  return one.ne(other).sum().item<int64_t>();
}

template <class Optimizer, class Options>
void compare_graphed(muster::Context& ctx,
                     const char* name,
                     const Options& options,
                     bool joins_norms = false) {
  const auto batches = batches_of(ctx, 8, 16, 30);
  const auto plain =
      trained_by<muster::TrainStep, Optimizer>(ctx, batches, options, -1, joins_norms);
  const auto graphed =
      trained_by<muster::GraphedStep, Optimizer>(ctx, batches, options, -1, joins_norms);
  const int64_t differ = num_differing(plain.losses, graphed.losses);
  const int64_t others = num_differing(plain.parameters, graphed.parameters);
  std::cout << "graphed " << name << ", rank " << ctx.rank() << ": " << graphed.replays
            << " replays; of " << plain.losses.numel() << " losses and norms " << differ
            << " differ, of " << plain.parameters.numel() << " parameters and averages " << others
            << std::endl;
  expect(differ == 0 && others == 0, "the bits of the step without a graph");
  expect(graphed.replays == 17, muster::cat("17 replays, got ", graphed.replays));
}

// What a step costs as a graph.
StepCosts costs_by_graph(muster::Context& ctx, const at::Tensor& x) {
  auto net = layers(x.size(1));
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-4));
  muster::GraphedStep step(model, optimizer, {.clip_norm = 1.0});
  const Rows batch{x, 1, true, x.size(0), {}};
  const auto take = [&] {
    step(batch, [&](const Rows& now) { return model(at::Tensor(now)).square().mean(); });
  };
  for (int64_t i = 0; i <= muster::GraphedStep::kWarmUpSteps; ++i)
    take();
  const StepCosts costs = costs_of_steps(ctx, take);
  expect(step.replays() > 50, "replays");
  return costs;
}

// A step as a graph has the bits of one without, on all ranks, and costs less.
void graph_steps(muster::Context& ctx, int64_t batch, const std::vector<int64_t>& widths) {
  compare_graphed<muster::optim::AdamW>(ctx, "AdamW", torch::optim::AdamWOptions(0x1p-10));
  compare_graphed<muster::optim::Adam>(ctx, "Adam", torch::optim::AdamOptions(0x1p-10));
  compare_graphed<muster::optim::SGD>(
      ctx, "SGD", torch::optim::SGDOptions(0x1p-10).momentum(0.9).nesterov(true));
  compare_graphed<muster::optim::AdamW>(ctx,
                                        "SyncBatchNorm",
                                        torch::optim::AdamWOptions(0x1p-10),
                                        /*joins_norms=*/true);
  for (const int64_t width : widths) {
    const auto x = torch::randn({batch, width}, ctx.device());
    const torch::optim::AdamWOptions options(1e-4);
    const auto plain = costs_by_train_step<muster::optim::AdamW>(ctx, x, options);
    const auto graphed = costs_by_graph(ctx, x);
    std::cout << "width " << width << ": TrainStep " << plain.milliseconds << " ms a step, "
              << "GraphedStep " << graphed.milliseconds << " ms (" << graphed.waits
              << " waits a step), ÷ TrainStep " << graphed.milliseconds / plain.milliseconds
              << std::endl;
  }
}

// The message of the error that `call` throws.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const muster::Error& error) {
    return error.what();
  }
  return "";
}

void expect_said(const std::string& said, const std::string& part) {
  expect(said.find(part) != std::string::npos,
         muster::cat("an error with '", part, "', got '", said, "'"));
}

// A loss that waits for the GPU is refused where it is captured, and nothing goes on behind it.
void refuse_waiting_step(muster::Context& ctx) {
  auto net = layers(16);
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0x1p-10));
  muster::GraphedStep step(model, optimizer);
  const Rows batch{torch::randn({4, 16}, ctx.device()), 1, true, 4, {}};
  const auto take = [&] {
    step(batch, [&](const Rows& now) {
      auto loss = model(at::Tensor(now)).square().mean();
      return loss.item<float>() > 1e6 ? loss * 2 : loss;
    });
  };
  for (int64_t i = 0; i < muster::GraphedStep::kWarmUpSteps; ++i)
    take();
  expect_said(error_of(take), "without waits for the GPU");
  expect_said(error_of(take), "of which the capture has failed");
}

// A replay whose gradients are not finite changes nothing, and an error tells of it. The steps go
// on behind it.
void stop_graphed(muster::Context& ctx) {
  auto net = layers(16);
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0x1p-10));
  muster::GraphedStep step(model, optimizer);
  const auto take = [&](double factor) {
    const Rows batch{torch::full({4, 16}, factor).to(ctx.device()), 1, true, 4, {}};
    step(batch, [&](const Rows& now) { return model(at::Tensor(now)).square().mean(); });
  };
  for (int i = 0; i < 15; ++i)
    take(1);
  const auto before = torch::nn::utils::parameters_to_vector(net->parameters()).detach().clone();
  const std::string said = error_of([&] {
    take(std::numeric_limits<double>::quiet_NaN());
    for (int later = 0; later < 100; ++later)
      take(1);
  });
  expect_said(said, "in step 16; the GPU has left out");
  const auto now = torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  expect(torch::equal(before, now), "the parameters of before step 16");
  expect(step.steps() == 15, muster::cat("15 steps, got ", step.steps()));
  take(1);
  const auto after = torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  expect(!torch::equal(before, after), "a step after the error");
  for (const auto& [key, state] : optimizer.state()) {
    const auto* const adam = dynamic_cast<const torch::optim::AdamWParamState*>(state.get());
    expect(adam->step() == 16, muster::cat("16 steps in the state, got ", adam->step()));
  }
}

// States that are loaded lie elsewhere: the graph is captured anew.
void reload_graphed(muster::Context& ctx) {
  const auto batches = batches_of(ctx, 8, 16, 44);
  const torch::optim::AdamWOptions options(0x1p-10);
  using Optimizer = muster::optim::AdamW;
  const auto plain = trained_by<muster::TrainStep, Optimizer>(ctx, batches, options, 16);
  const auto graphed = trained_by<muster::GraphedStep, Optimizer>(ctx, batches, options, 16);
  const int64_t differ = num_differing(plain.losses, graphed.losses);
  expect(differ == 0, muster::cat("the losses of the step without a graph, got ", differ));
  expect(num_differing(plain.parameters, graphed.parameters) == 0, "its parameters");
  expect(graphed.replays == 20, muster::cat("replays of two graphs, got ", graphed.replays));
}

// A step that fails has been at work on its own stream. The program that goes on behind it uses
// the model's buffers on another.
void go_on_after_failure(muster::Context& ctx) {
  auto net = small_net();
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0x1p-10));
  muster::GraphedStep step(model, optimizer);
  const Rows batch{torch::randn({4, 12}, ctx.device()), 1, true, 4, {}};
  const auto take = [&](bool fails) {
    step(batch, [&](const Rows& now) {
      const auto loss = model(at::Tensor(now)).square().mean();
      if (fails)
        throw std::runtime_error("the loss fails");
      return loss;
    });
  };
  take(false);
  std::string said;
  try {
    take(true);
  } catch (const std::exception& error) {
    said = error.what();
  }
  expect_said(said, "the loss fails");
  const auto batches = net->named_buffers()["1.num_batches_tracked"].item<int64_t>();
  expect(batches == 2, muster::cat("a count of 2 batches, got ", batches));
}

// Replays until a GPU hangs in one.
void replay_for_ever(muster::Context& ctx) {
  auto net = layers(16);
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0x1p-10));
  muster::GraphedStep step(model, optimizer);
  const Rows batch{torch::randn({4, 16}, ctx.device()), 1, true, 4, {}};
  for (;;) {
    const auto loss =
        step(batch, [&](const Rows& now) { return model(at::Tensor(now)).square().mean(); });
    expect(loss.item<float>() > 0, "a loss");
  }
}

// The last rank does not come to a call that has a limit of its own, while a graph lives that has
// captured the communicator. The error comes all the same, and the graph does nothing more.
void run_out_of_time_beside_graph(muster::Context& ctx) {
  auto net = layers(16);
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0x1p-10));
  muster::GraphedStep step(model, optimizer);
  const Rows batch{torch::randn({4, 16}, ctx.device()), 1, true, 4, {}};
  const auto take = [&] {
    step(batch, [&](const Rows& now) { return model(at::Tensor(now)).square().mean(); });
  };
  for (int64_t i = 0; i < muster::GraphedStep::kWarmUpSteps + 3; ++i)
    take();
  expect(step.replays() == 3, muster::cat("3 replays, got ", step.replays()));
  auto sum = torch::ones({1 << 16}, ctx.device());
  auto limited = ctx.process_group().with_timeout(std::chrono::seconds(3));
  limited.all_reduce(sum);
  if (ctx.rank() == ctx.world_size() - 1) {
    for (;;)
      ::pause();
  }
  const std::string said = error_of([&] { limited.all_reduce(sum); });
  std::cout << "rank " << ctx.rank() << " threw: " << said << std::endl;
  throw std::runtime_error(said);
}

void graph_faults(muster::Context& ctx) {
  stop_graphed(ctx);
  reload_graphed(ctx);
  refuse_waiting_step(ctx);
  go_on_after_failure(ctx);
}

}  // namespace

Probes graph_probes() {
  return {
      {"graphed", [](muster::Context& ctx) { graph_steps(ctx, 1024, {256, 2048}); }},
      {"graphed small", [](muster::Context& ctx) { graph_steps(ctx, 4, {16}); }},
      {"graphed faults", graph_faults},
      {"graphed for ever", replay_for_ever},
      {"graphed limit", run_out_of_time_beside_graph},
  };
}

}  // namespace gpu_probe
