// Does, on every rank and its GPU, what its first argument says: for gpu_programs_test.py.
#include <muster/muster.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <iostream>
#include <stdexcept>

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

[[gnu::noinline]] at::Tensor hook_that_hangs(const at::Tensor&) {
  for (;;)
    ::pause();
}

// The last rank hangs in a backward, which has a thread of its own; the others wait for its
// gradients.
void hang_in_a_backward(muster::Context& ctx) {
  auto net = small_net();
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  auto loss = model(torch::ones({4, 12}, ctx.device())).square().mean();
  if (ctx.rank() == ctx.world_size() - 1)
    loss.register_hook(hook_that_hangs);
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
  if (what == "forever")
    return train_forever(ctx);
  throw std::invalid_argument("gpu_probe: unknown '" + what + "'");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
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
