// Does, on every rank and its GPU, what its first argument says: for gpu_programs_test.py.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <muster/muster.h>
#include <signal.h>
#include <torch/torch.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <type_traits>

// It is exported, so that its name is in a stack whatever the machine has to look names up.
extern "C" [[gnu::noinline, gnu::visibility("default")]] void hook_that_hangs() {
  for (;;)
    ::pause();
}

namespace {

void expect(bool holds, const std::string& what) {
  if (!holds)
    throw std::runtime_error("expected " + what);
}

bool are_close(const at::Tensor& a, const at::Tensor& b) {
  return torch::allclose(a, b, /*rtol=*/1e-4, /*atol=*/1e-5);
}

torch::nn::Sequential small_net() {
  torch::manual_seed(11);
  return torch::nn::Sequential(torch::nn::Linear(12, 16),
                               torch::nn::BatchNorm1d(16),
                               torch::nn::Tanh(),
                               torch::nn::Linear(16, 5));
}

std::vector<at::Tensor> gradients_of(torch::nn::Module& model) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model.parameters())
    gradients.push_back(parameter.grad().clone());
  return gradients;
}

void expect_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  expect(got.size() == expected.size(), "as many gradients");
  for (size_t i = 0; i < got.size(); ++i)
    expect(are_close(got[i], expected[i]), muster::cat("gradient ", i, " to be the same"));
}

// Ranks with SyncBatchNorm have the gradients of one process with all of the batch.
void sync_batch_norm(muster::Context& ctx) {
  torch::manual_seed(3);
  const auto x = torch::randn({int64_t{8} * ctx.world_size(), 12}).to(ctx.device());
  auto whole = small_net();
  whole->to(ctx.device());
  whole->forward(x).square().mean().backward();
  auto net = small_net();
  net->to(ctx.device());
  muster::convert_sync_batch_norm(*net, ctx.process_group());
  muster::DistributedDataParallel model(net, ctx.process_group());
  model(x.chunk(ctx.world_size())[static_cast<size_t>(ctx.rank())]).square().mean().backward();
  expect_close(gradients_of(*net), gradients_of(*whole));
}

// Two replicas, on one GPU where there is but one, have the gradients of one.
void data_parallel(muster::Context& ctx) {
  torch::manual_seed(3);
  const auto x = torch::randn({16, 12}).to(ctx.device());
  auto net = small_net();
  net->to(ctx.device());
  net->eval();  // statistics are each replica's own
  net->forward(x).square().mean().backward();
  const auto expected = gradients_of(*net);
  net->zero_grad();
  muster::DataParallel model(net, {ctx.device(), ctx.device()});
  model(x).square().mean().backward();
  expect_close(gradients_of(*net), expected);
}

// A group of rank 0 alone.
void sub_group(muster::Context& ctx) {
  auto group = ctx.process_group().new_group({0});
  expect(group.has_value() == (ctx.rank() == 0), "a group on rank 0 alone");
  auto sum = torch::ones({4}, ctx.device());
  if (group)
    group->all_reduce(sum);
  expect(sum.sum().item<float>() == 4, "the sum of one rank");
}

void out_of_memory(muster::Context& ctx) {
  auto sum = torch::ones({4}, ctx.device());
  ctx.process_group().all_reduce(sum);
  if (ctx.rank() == ctx.world_size() - 1)
    torch::empty({int64_t{1} << 42}, ctx.device());  // 16 TiB
  ctx.process_group().all_reduce(sum);
}

// Rank 0 is alone where there is but one rank: then it dies, or does not come, itself.
void lose_the_last_rank(muster::Context& ctx, bool dies) {
  auto sum = torch::ones({1 << 16}, ctx.device());
  ctx.process_group().all_reduce(sum);
  if (ctx.rank() == ctx.world_size() - 1) {
    if (dies)
      ::raise(SIGKILL);
    for (;;)
      ::pause();
  }
  ctx.process_group().all_reduce(sum);
  expect(sum.sum().item<float>() > 0, "the sum of all ranks");  // waits for the GPU
}

// The last rank hangs in a backward, which has a thread of its own; the others wait for its
// gradients.
void hang_in_a_backward(muster::Context& ctx) {
  auto net = small_net();
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  auto loss = model(torch::ones({4, 12}, ctx.device())).square().mean();
  if (ctx.rank() == ctx.world_size() - 1)
    loss.register_hook([](const at::Tensor& gradient) {
      hook_that_hangs();
      return gradient;
    });
  loss.backward();
}

// The last rank dies before a sum that the others have begun, and wait for on their GPUs alone.
void wait_on_the_gpu(muster::Context& ctx) {
  auto sum = torch::ones({1 << 16}, ctx.device());
  ctx.process_group().all_reduce(sum);
  if (ctx.rank() == ctx.world_size() - 1)
    ::raise(SIGKILL);
  ctx.process_group().all_reduce(sum);
  for (;;)
    ::pause();
}

// The last rank does not come to a sum that the others have begun, and wait for on their GPUs
// alone.
void stay_away(muster::Context& ctx) {
  auto sum = torch::ones({1 << 16}, ctx.device());
  ctx.process_group().all_reduce(sum);
  if (ctx.rank() < ctx.world_size() - 1)
    ctx.process_group().all_reduce(sum);
  for (;;)
    ::pause();
}

// Nor to the sum of a bucket of gradients.
void stay_away_from_gradients(muster::Context& ctx) {
  auto net = small_net();
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  auto loss = model(torch::ones({4, 12}, ctx.device())).square().mean();
  if (ctx.rank() < ctx.world_size() - 1)
    loss.backward();
  for (;;)
    ::pause();
}

// Sums, and those of gradients, to which all ranks come.
void sum_all(muster::Context& ctx) {
  auto sum = torch::ones({1 << 16}, ctx.device());
  for (int i = 0; i < 3; ++i)
    ctx.process_group().all_reduce(sum);
  auto net = small_net();
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  model(torch::ones({4, 12}, ctx.device())).square().mean().backward();
  ctx.process_group().barrier();
}

// Sums in groups that go out of scope at once, behind other work of the GPU.
void drop_groups(muster::Context& ctx) {
  const int64_t size = std::getenv("FAKE_CUDA") != nullptr ? 64 : 4096;
  const auto a = torch::randn({size, size}, ctx.device());
  std::vector<int> all(static_cast<size_t>(ctx.world_size()));
  std::iota(all.begin(), all.end(), 0);
  const auto expected = static_cast<float>(ctx.world_size() * (ctx.world_size() + 1)) / 2;
  for (int i = 0; i < 4; ++i) {
    auto sum = torch::full({1 << 22}, static_cast<float>(ctx.rank() + 1), ctx.device());
    {
      auto group = ctx.process_group().new_group(all);
      for (int product = 0; product < 30; ++product)
        a.mm(a);
      group->all_reduce(sum);
    }
    const auto wrong = sum.ne(expected).sum().item<int64_t>();
    expect(wrong == 0, muster::cat("whole sums of a group that ended, got ", wrong, " wrong"));
  }
  ctx.process_group().barrier();
}

// The gradients of two micro-batches, reduced with the second.
std::vector<at::Tensor> reduced_gradients(muster::Context& ctx, const muster::DdpOptions& options) {
  auto net = small_net();
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group(), options);
  torch::manual_seed(20 + ctx.rank());
  const auto x = torch::randn({2, 8, 12}).to(ctx.device());
  {
    const auto local = model.no_sync();
    model(x[0]).square().mean().backward();
  }
  model(x[1]).square().mean().backward();
  return gradients_of(*net);
}

// Rank r has r inputs less than rank 0, which is alone in the last step: its gradient there.
at::Tensor gradient_of_the_last(muster::Context& ctx, bool by_all) {
  torch::nn::Linear net(torch::nn::LinearOptions(4, 1).bias(false));
  net->to(ctx.device());
  torch::NoGradGuard no_grad;
  net->weight.fill_(0.5);
  torch::AutoGradMode grad(true);
  muster::DistributedDataParallel model(net, ctx.process_group());
  const auto x = torch::arange(4.0F).to(ctx.device());
  model.join(
      [&] {
        for (int i = 0; i < ctx.world_size() - ctx.rank(); ++i) {
          net->zero_grad();
          model(x + i).sum().backward();
        }
      },
      {.divide_by_initial_world_size = by_all});
  return net->weight.grad().cpu() / (torch::arange(4.0F) + (ctx.world_size() - 1));
}

// Gradients are averaged with the bits of a hook that divides them before they are added.
void average_gradients(muster::Context& ctx) {
  for (const bool views : {true, false}) {
    for (const bool unused : {true, false}) {
      muster::DdpOptions options{.find_unused_parameters = unused,
                                 .gradient_as_bucket_view = views};
      const auto got = reduced_gradients(ctx, options);
      options.hook = muster::plain_average();
      const auto expected = reduced_gradients(ctx, options);
      for (size_t i = 0; i < got.size(); ++i)
        expect(torch::equal(got[i], expected[i]), muster::cat("the bits of gradient ", i));
    }
  }
  for (const bool by_all : {true, false}) {
    const auto share = gradient_of_the_last(ctx, by_all);
    const float expected = by_all ? 1.0F / static_cast<float>(ctx.world_size()) : 1.0F;
    if (ctx.rank() == 0)
      expect(share.eq(expected).all().item<bool>(), muster::cat("shares of ", expected));
  }
}

// The last rank does not come to a call that has a limit of its own.
void run_out_of_time(muster::Context& ctx) {
  auto sum = torch::ones({1 << 16}, ctx.device());
  auto limited = ctx.process_group().with_timeout(std::chrono::seconds(3));
  limited.all_reduce(sum);
  expect(sum.sum().item<float>() > 0, "the sum of all ranks");
  if (ctx.rank() == ctx.world_size() - 1) {
    for (;;)
      ::pause();
  }
  const auto begin = muster::Clock::now();
  try {
    limited.all_reduce(sum);
    expect(sum.sum().item<float>() > 0, "the sum of all ranks");
  } catch (const muster::Error& error) {
    const double seconds = muster::seconds_since(begin);
    expect(error.code() == muster::ErrorCode::timeout,
           muster::cat("a timeout, got ", error.what()));
    expect(seconds < 6, muster::cat("3 s, got ", seconds));
    std::cout << "rank " << ctx.rank() << " threw: " << error.what() << std::endl;
    throw;
  }
  throw std::runtime_error("expected a timeout, got a sum");
}

// How often the host has waited for the GPU, where count_waits.cc is loaded beforehand.
int64_t host_waits() {
  using Count = int64_t (*)();
  static const auto count = reinterpret_cast<Count>(::dlsym(RTLD_DEFAULT, "count_waits_so_far"));
  return count != nullptr ? count() : -1;
}

struct StepCosts {
  double waits;
  double milliseconds;
};

// What a step of 50 costs.
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

// What a step costs by TrainStep, with all that it does.
template <class Optimizer, class Options>
StepCosts costs_by_train_step(muster::Context& ctx, const at::Tensor& x, const Options& options) {
  auto net = layers(x.size(1));
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  Optimizer optimizer(model.parameters(), options);
  muster::TrainStep step(model, optimizer, {.clip_norm = 1.0});
  return costs_of_steps(ctx, [&] { step.run(1, true, [&] { return model(x).square().mean(); }); });
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
                   int64_t saved_after = -1) {
  const int64_t width = batches[0].size(1);
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(width, 2 * width),
                            torch::nn::BatchNorm1d(2 * width),
                            torch::nn::ReLU(),
                            torch::nn::Dropout(0.1),
                            torch::nn::Linear(2 * width, width));
  net->to(ctx.device());
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
void compare_graphed(muster::Context& ctx, const char* name, const Options& options) {
  const auto batches = batches_of(ctx, 8, 16, 30);
  const auto plain = trained_by<muster::TrainStep, Optimizer>(ctx, batches, options);
  const auto graphed = trained_by<muster::GraphedStep, Optimizer>(ctx, batches, options);
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

void graph_faults(muster::Context& ctx) {
  stop_graphed(ctx);
  reload_graphed(ctx);
  refuse_waiting_step(ctx);
}

// A save in the background has the values of its step, whatever the steps after it do. Of the host,
// only the thread that writes waits for the GPU, once.
void save_beside_training(muster::Context& ctx) {
  auto net = layers(64);
  net->to(ctx.device());
  muster::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  muster::Checkpoints checkpoints(ctx, {.folder = "beside", .resume = true, .background = true});
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
    expect(waits <= 1, muster::cat("the writing thread's wait alone, got ", waits));
    train();
    train();
    checkpoints.finish();
    checkpoints.restore();
    const auto restored = torch::nn::utils::parameters_to_vector(net->parameters()).detach();
    expect(torch::equal(saved, restored), muster::cat("the parameters of step ", step));
  }
}

// Until somebody ends it.
void train_forever(muster::Context& ctx) {
  auto net = small_net();
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  const auto x = torch::randn({32, 12}, ctx.device());
  for (int step = 0;; ++step) {
    optimizer.zero_grad();
    model(x).square().mean().backward();
    optimizer.step();
    if (step == 3)
      std::cout << "rank " << ctx.rank() << " pid " << ::getpid() << " trains" << std::endl;
  }
}

void probe(const std::string& what, muster::Context& ctx) {
  if (what == "sync batch norm")
    return sync_batch_norm(ctx);
  if (what == "data parallel")
    return data_parallel(ctx);
  if (what == "high priority" || what == "split" || what == "no split")
    return sub_group(ctx);
  if (what == "out of memory")
    return out_of_memory(ctx);
  if (what == "dies")
    return lose_the_last_rank(ctx, true);
  if (what == "late")
    return lose_the_last_rank(ctx, false);
  if (what == "backward")
    return hang_in_a_backward(ctx);
  if (what == "waits")
    return wait_on_the_gpu(ctx);
  if (what == "sums")
    return sum_all(ctx);
  if (what == "away")
    return stay_away(ctx);
  if (what == "away from gradients")
    return stay_away_from_gradients(ctx);
  if (what == "drop groups")
    return drop_groups(ctx);
  if (what == "averages")
    return average_gradients(ctx);
  if (what == "limit")
    return run_out_of_time(ctx);
  if (what == "count waits")
    return count_waits(ctx, 1024, {256, 2048});
  if (what == "count waits of a small model")
    return count_waits(ctx, 4, {16});
  if (what == "graphed")
    return graph_steps(ctx, 1024, {256, 2048});
  if (what == "graphed small")
    return graph_steps(ctx, 4, {16});
  if (what == "graphed faults")
    return graph_faults(ctx);
  if (what == "save beside")
    return save_beside_training(ctx);
  if (what == "leave out")
    return leave_steps_out(ctx);
  if (what == "forever")
    return train_forever(ctx);
  throw std::invalid_argument("gpu_probe: unknown '" + what + "'");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "version") {
    std::cout << TORCH_VERSION << std::endl;
    return 0;
  }
  muster::RunOptions options;
  options.nccl = {.high_priority_stream = what == "high priority", .split = what != "no split"};
  return muster::run(options, argc, argv, [&](muster::Context& ctx) {
    if (!ctx.device().is_cuda())
      throw std::runtime_error("gpu_probe: expected a GPU, got " + ctx.device().str());
    probe(what, ctx);
    if (ctx.is_main())
      std::cout << "gpu_probe: " << what << " holds" << std::endl;
  });
}
