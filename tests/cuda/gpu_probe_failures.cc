// Ranks that fail, hang, stay away or are late while others wait for them on their GPUs, and ranks
// that a test ends.
#include "gpu_probe.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <iostream>

// It is exported, so that its name is in a stack whatever the machine has to look names up.
extern "C" [[gnu::noinline, gnu::visibility("default")]] void hook_that_hangs() {
  for (;;)
    ::pause();
}

namespace gpu_probe {
namespace {

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

// Trains until a GPU hangs, and waits for each loss: all ranks have come to what hangs, so that
// their hosts see nothing.
void wait_for_losses(muster::Context& ctx) {
  auto net = small_net();
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  const auto x = torch::randn({32, 12}, ctx.device());
  for (;;) {
    optimizer.zero_grad();
    const auto loss = model(x).square().mean();
    loss.backward();
    optimizer.step();
    expect(loss.item<float>() > 0, "a loss");
  }
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

}  // namespace

Probes failure_probes() {
  return {
      {"out of memory", out_of_memory},
      {"dies", [](muster::Context& ctx) { lose_the_last_rank(ctx, true); }},
      {"late", [](muster::Context& ctx) { lose_the_last_rank(ctx, false); }},
      {"backward", hang_in_a_backward},
      {"waits", wait_on_the_gpu},
      {"away", stay_away},
      {"away from gradients", stay_away_from_gradients},
      {"sums", sum_all},
      {"losses", wait_for_losses},
      {"limit", run_out_of_time},
      {"forever", train_forever},
  };
}

}  // namespace gpu_probe
