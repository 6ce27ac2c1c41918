// What TrainStep, optimizers and saves in the background cost, and steps that the GPU leaves out.
#include "gpu_probe_costs.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "gpu_probe.h"

namespace gpu_probe {

int64_t host_waits() {
  using Count = int64_t (*)();
  static const auto count = reinterpret_cast<Count>(::dlsym(RTLD_DEFAULT, "count_waits_so_far"));
  return count != nullptr ? count() : -1;
}

StepCosts costs_of_steps(muster::Context& ctx, const std::function<void()>& step) {
  constexpr int kSteps = 50;
  for (int i = 0; i < 10; ++i)
    step();
  const c10::impl::VirtualGuardImpl gpu(ctx.device().type());
  gpu.synchronizeDevice(ctx.device().index());
  const auto begin = muster::Clock::now();
  const int64_t before = host_waits();
  for (int i = 0; i < kSteps; ++i)
    step();
  const auto waits = static_cast<double>(host_waits() - before);
  gpu.synchronizeDevice(ctx.device().index());
  return {.waits = waits / kSteps, .milliseconds = muster::seconds_since(begin) * 1e3 / kSteps};
}

torch::nn::Sequential layers(int64_t width) {
  torch::manual_seed(5);
  torch::nn::Sequential net;
  for (int layer = 0; layer < 24; ++layer) {
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

namespace {

// What a step costs by hand.
template <class Optimizer, class Options>
StepCosts costs_by_hand(muster::Context& ctx, const at::Tensor& x, const Options& options) {
  auto net = layers(x.size(1));
  net->to(ctx.device());
  Optimizer optimizer(net->parameters(), options);
  return costs_of_steps(ctx, [&] {
    optimizer.zero_grad();
    net->forward(x).square().mean().backward();
    optimizer.step();
  });
}

// How often TrainStep waits for the GPU, and what that costs beside a loop of one's own.
void count_waits(muster::Context& ctx, int64_t batch, const std::vector<int64_t>& widths) {
  const torch::optim::AdamWOptions options(1e-4);
  for (const int64_t width : widths) {
    const auto x = torch::randn({batch, width}, ctx.device());
    const auto theirs = costs_by_hand<torch::optim::AdamW>(ctx, x, options);
    const auto print = [&](const char* what, const StepCosts& costs) {
      std::cout << "width " << width << ", " << what << ": " << costs.waits << " waits a step, "
                << costs.milliseconds << " ms, ÷ by hand "
                << costs.milliseconds / theirs.milliseconds << std::endl;
    };
    print("by hand, torch::optim::AdamW", theirs);
    print("by hand, muster::optim::AdamW", costs_by_hand<muster::optim::AdamW>(ctx, x, options));
    print("TrainStep, torch::optim::AdamW",
          costs_by_train_step<torch::optim::AdamW>(ctx, x, options));
    const auto ours = costs_by_train_step<muster::optim::AdamW>(ctx, x, options);
    print("TrainStep, muster::optim::AdamW", ours);
    expect(ours.waits <= 0, muster::cat("no waits for the GPU, got ", ours.waits, " a step"));
  }
}

// A way of training, whose steps of two micro-batches keep averages and a norm.
void expect_no_waits(muster::Context& ctx,
                     const char* way,
                     const muster::StepModels& models,
                     torch::optim::Optimizer& optimizer,
                     const muster::TrainStepOptions& options,
                     const std::function<at::Tensor()>& loss_of) {
  muster::TrainStep step(models, optimizer, options);
  const StepCosts costs = costs_of_steps(ctx, [&] {
    step.run(1, /*last=*/false, loss_of);
    step.run(1, /*last=*/true, loss_of);
  });
  expect(costs.waits == 0, muster::cat("no waits for the GPU of ", way, ", got ", costs.waits));
}

// Ranks of NCCL have as few waits as one rank, also where their model or optimizer is divided. A
// ShardedOptimizer is no optimizer of muster::optim: TrainStep waits if it has to know of NaN.
void count_waits_of_ranks(muster::Context& ctx) {
  using AdamW = muster::optim::AdamW;
  const auto group = ctx.process_group();
  const auto x = torch::randn({4, 16}, ctx.device());
  const auto train = [&](const char* way, auto& net, auto& model, auto& optimizer, auto&& options) {
    expect(host_waits() >= 0, "that waits are counted");
    expect_no_waits(ctx, way, net, optimizer, options, [&] { return model(x).square().mean(); });
  };
  const auto small = [] {
    torch::manual_seed(5);
    return torch::nn::Sequential(
        torch::nn::Linear(16, 8), torch::nn::Tanh(), torch::nn::Linear(8, 4));
  };
  auto copied = small();
  copied->to(ctx.device());
  muster::DistributedDataParallel model(copied, group);
  AdamW of_copies(model.parameters(), 1e-4);
  muster::Ema ema(*copied, 0.9);
  train("DistributedDataParallel",
        model,
        model,
        of_copies,
        muster::TrainStepOptions{.clip_norm = 1.0, .ema = &ema});

  auto whole = small();
  whole->to(ctx.device());
  muster::FullySharded sharded(group);
  auto wrapped = sharded.wrap(whole);
  AdamW of_parts(sharded.parameters(), 1e-4);
  muster::Ema of_pieces(sharded.pieces(*whole), 0.9);
  train(
      "FullySharded",
      whole,
      wrapped,
      of_parts,
      muster::TrainStepOptions{
          .clip = [&] { return sharded.clip_grad_norm(1.0); }, .ema = &of_pieces, .group = group});

  auto zero = small();
  zero->to(ctx.device());
  muster::DistributedDataParallel averaged(zero, group);
  muster::ShardedOptimizer<AdamW> divided(
      zero->parameters(), torch::optim::AdamWOptions(1e-4), group);
  train("ShardedOptimizer",
        averaged,
        averaged,
        divided,
        muster::TrainStepOptions{
            .clip_norm = 1.0, .on_nonfinite = muster::OnNonfinite::ignore, .group = group});
}

// What is added to metrics waits for nothing until they are written.
void add_to_metrics(muster::Context& ctx) {
  muster::Metrics metrics(ctx);
  const auto logits = torch::randn({8, 4}).to(ctx.device());
  const auto labels = torch::tensor({0, 1, 2, 3, -1, -1, 0, 1}).to(ctx.device());
  const int64_t before = host_waits();
  expect(before >= 0, "that waits are counted");
  for (int step = 0; step < 3; ++step) {
    metrics.mean("loss", logits.square().mean(), 8);
    metrics.accuracy("right", logits, labels, /*k=*/1, /*ignore_index=*/-1);
  }
  expect(host_waits() == before, muster::cat("no waits, got ", host_waits() - before));
  const double expected = logits.argmax(1).eq(labels).sum().item<double>() / 6;
  const double got = metrics.write(1)["right"];
  expect(std::abs(got - expected) < 1e-9, muster::cat("right of ", expected, ", got ", got));
}

// A step whose gradients are not finite changes nothing, and the error tells of it.
template <class Optimizer, class Options>
void stop_late(muster::Context& ctx, const Options& options) {
  auto net = layers(16);
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  Optimizer optimizer(model.parameters(), options);
  muster::TrainStep step(model, optimizer);
  const auto x = torch::randn({4, 16}, ctx.device());
  const auto train = [&](double factor) {
    step.run(1, true, [&] { return model(x).square().mean() * factor; });
  };
  for (int i = 0; i < 3; ++i)
    train(1);
  const auto before = torch::cat([&] {
    std::vector<at::Tensor> all;
    for (const auto& parameter : net->parameters())
      all.push_back(parameter.detach().flatten());
    return all;
  }());
  std::string said;
  int64_t later = 0;
  try {
    train(std::numeric_limits<double>::quiet_NaN());
    for (; later < 100; ++later)
      train(1);
  } catch (const muster::Error& error) {
    said = error.what();
  }
  expect(said.find("in step 4; the GPU has left out") != std::string::npos,
         muster::cat("an error that names step 4, got '", said, "'"));
  const auto all = ctx.process_group().all_gather_bytes(muster::cat(later), "steps until then");
  for (const std::string& other : all)
    expect(other == all[0], muster::cat("one step on all ranks, got ", muster::join(all, ", ")));
  int64_t first = 0;
  for (const auto& parameter : net->parameters()) {
    const auto then = before.slice(0, first, first + parameter.numel());
    expect(torch::equal(then, parameter.detach().flatten()), "the parameters of before step 4");
    first += parameter.numel();
  }
  expect(step.steps() == 3, muster::cat("3 steps, got ", step.steps()));
  train(1);
  expect(step.steps() == 4, "a fourth step after the error");
  for (const auto& [key, state] : optimizer.state()) {
    if (const auto* adam = dynamic_cast<const torch::optim::AdamWParamState*>(state.get()))
      expect(adam->step() == 4, muster::cat("4 steps in the state, got ", adam->step()));
  }
}

void leave_steps_out(muster::Context& ctx) {
  stop_late<muster::optim::AdamW>(ctx, torch::optim::AdamWOptions(1e-3));
  stop_late<muster::optim::Adam>(ctx, torch::optim::AdamOptions(1e-3));
  stop_late<muster::optim::SGD>(ctx, torch::optim::SGDOptions(1e-3).momentum(0.9));
}

// A save in the background has the values of its step, whatever the steps after it do. Of the host,
// only the thread that writes waits for the GPU, once; several ranks meet besides.
void save_beside_training(muster::Context& ctx) {
  auto net = layers(64);
  net->to(ctx.device());
  muster::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  muster::Checkpoints checkpoints(ctx, {.folder = "beside", .resume = true, .background = true});
  // Of several ranks each writes a part.
  const muster::TensorPieces pieces = muster::whole_pieces(*net);
  if (ctx.world_size() > 1)
    checkpoints.add("model", pieces).add("optimizer", optimizer, pieces);
  else
    checkpoints.add("model", net).add("optimizer", optimizer);
  const auto x = torch::randn({32, 64}, ctx.device());
  const auto train = [&] {
    optimizer.zero_grad();
    net->forward(x).square().mean().backward();
    optimizer.step();
  };
  train();
  checkpoints.save(1);  // makes the room on the host
  checkpoints.finish();
  for (int step = 2; step <= 4; ++step) {
    train();
    const auto saved = torch::nn::utils::parameters_to_vector(net->parameters()).detach().clone();
    const int64_t before = host_waits();
    checkpoints.save(step);
    const int64_t waits = host_waits() - before;
    expect(waits <= 1 || ctx.world_size() > 1,
           muster::cat("the writing thread's wait alone, got ", waits));
    train();
    train();
    checkpoints.finish();
    checkpoints.restore();
    const auto restored = torch::nn::utils::parameters_to_vector(net->parameters()).detach();
    expect(torch::equal(saved, restored), muster::cat("the parameters of step ", step));
  }
}

}  // namespace

Probes cost_probes() {
  return {
      {"count waits", [](muster::Context& ctx) { count_waits(ctx, 1024, {256, 2048}); }},
      {"count waits of a small model", [](muster::Context& ctx) { count_waits(ctx, 4, {16}); }},
      {"count waits of ranks", count_waits_of_ranks},
      {"metrics", add_to_metrics},
      {"leave out", leave_steps_out},
      {"save beside", save_beside_training},
  };
}

}  // namespace gpu_probe
