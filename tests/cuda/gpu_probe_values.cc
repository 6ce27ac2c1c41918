// Values that calls, groups and averages have on GPUs, beside those of one process.
#include "gpu_probe.h"

#include <c10/core/Event.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpu_probe_costs.h"

namespace gpu_probe {
namespace {

bool are_close(const at::Tensor& a, const at::Tensor& b) {
  return torch::allclose(a, b, /*rtol=*/1e-4, /*atol=*/1e-5);
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

// Ranks with SyncBatchNorm have the gradients of one process with all of the batch. Rank 0 may have
// none of it.
void compare_sync_batch_norm(muster::Context& ctx, bool rank_0_has_values) {
  torch::manual_seed(3);
  const auto x = torch::randn({int64_t{8} * ctx.world_size(), 12}).to(ctx.device());
  auto whole = small_net();
  whole->to(ctx.device());
  (whole->forward(x).square().sum() / 80).backward();
  auto net = small_net();
  net->to(ctx.device());
  muster::convert_sync_batch_norm(*net, ctx.process_group());
  muster::DistributedDataParallel model(net, ctx.process_group());
  const int64_t parts = ctx.world_size() - (rank_0_has_values ? 0 : 1);
  const int64_t part = ctx.rank() - (rank_0_has_values ? 0 : 1);
  const auto mine = part < 0 ? x.slice(0, 0, 0) : x.chunk(parts)[static_cast<size_t>(part)];
  (model(mine).square().sum() * ctx.world_size() / 80).backward();  // DDP divides by the ranks
  expect_close(gradients_of(*net), gradients_of(*whole));
  const auto hidden = whole->at<torch::nn::LinearImpl>(0).forward(x).detach();
  const auto running = net->named_buffers()["1.running_var"];
  expect(are_close(running, 0.9 + 0.1 * hidden.var(0)), "the running variance of all values");
  const int64_t before = host_waits();
  net->forward(mine);
  const int64_t waits = host_waits() - before;
  const bool stays_on_gpu = ctx.process_group().backend() == "nccl" && mine.size(0) > 1;
  expect(!stays_on_gpu || waits == 0, muster::cat("no waits for the GPU, got ", waits));
}

void sync_batch_norm(muster::Context& ctx) {
  compare_sync_batch_norm(ctx, /*rank_0_has_values=*/true);
  if (ctx.world_size() > 1)
    compare_sync_batch_norm(ctx, /*rank_0_has_values=*/false);
}

// Two replicas, on one GPU where there is but one, have the gradients of one. The program uses a
// stream of its own, which the threads of the replicas have to use too.
void data_parallel(muster::Context& ctx) {
  const c10::StreamGuard on_another(stream_of_pool(ctx.device()));
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

// The gradients that a hook leaves, with the forward on a stream of its own or not. PyTorch ends a
// backward on the stream of its caller.
std::vector<at::Tensor> gradients_by(muster::Context& ctx, const muster::Hook& hook, bool beside) {
  using c10::impl::VirtualGuardImpl;
  const VirtualGuardImpl gpu(ctx.device().type());
  const c10::Stream of_caller = gpu.getStream(ctx.device());
  std::optional<muster::DistributedDataParallel<torch::nn::Sequential>> model;
  std::optional<c10::StreamGuard> on_another;
  if (beside)
    on_another.emplace(stream_of_pool(ctx.device()));
  auto net = small_net();
  net->to(ctx.device());
  model.emplace(net, ctx.process_group(), muster::DdpOptions{.hook = hook});
  torch::manual_seed(20 + ctx.rank());
  for (int step = 0; step < 3; ++step) {
    const auto loss = (*model)(torch::randn({8, 12}).to(ctx.device())).square().mean();
    const c10::Stream of_forward = gpu.getStream(ctx.device());
    {
      const c10::StreamGuard outside(of_caller);
      loss.backward();
    }
    c10::Event reached(ctx.device().type());
    reached.record(of_caller);
    reached.block(of_forward);
  }
  std::vector<at::Tensor> gradients;
  for (const auto& gradient : gradients_of(*net))
    gradients.push_back(gradient.cpu());
  return gradients;
}

// Hooks make tensors on the stream of the gradients, and end on the caller's.
void hooks_beside(muster::Context& ctx) {
  const std::map<std::string, std::function<muster::Hook()>> hooks = {
      {"plain_average", muster::plain_average},
      {"fp16_compression", muster::fp16_compression},
      {"top_k", [] { return muster::top_k({.density = 0.25}); }},
      {"power_sgd", [] { return muster::power_sgd({.start_step = 1}); }},
      {"quantized_8bit", [] { return muster::quantized_8bit(); }},
  };
  for (const auto& [name, make] : hooks) {
    const auto expected = gradients_by(ctx, make(), /*beside=*/false);
    const auto got = gradients_by(ctx, make(), /*beside=*/true);
    for (size_t i = 0; i < got.size(); ++i)
      expect(torch::equal(got[i], expected[i]), muster::cat(name, ": the bits of gradient ", i));
  }
}

// What a backward of parts that two blocks have leaves. It is begun on the stream that is current
// outside.
std::vector<at::Tensor> parts_after_steps(muster::Context& ctx, bool beside) {
  using c10::impl::VirtualGuardImpl;
  const VirtualGuardImpl gpu(ctx.device().type());
  const c10::Stream of_caller = gpu.getStream(ctx.device());
  std::optional<c10::StreamGuard> on_another;
  if (beside)
    on_another.emplace(stream_of_pool(ctx.device()));
  const c10::Stream of_forward = gpu.getStream(ctx.device());
  torch::manual_seed(11);
  torch::nn::Linear first(12, 16), second(16, 5);
  first->to(ctx.device());
  second->to(ctx.device());
  muster::FullySharded sharded(ctx.process_group(), {.compute_dtype = at::kBFloat16});
  auto one = sharded.wrap(first);
  auto other = sharded.wrap(second);
  torch::manual_seed(20 + ctx.rank());
  for (int step = 0; step < 3; ++step) {
    const auto x = torch::randn({8, 12}).to(ctx.device()).to(at::kBFloat16);
    const auto loss = other(one(x).tanh()).to(at::kFloat).square().mean();
    {
      const c10::StreamGuard outside(of_caller);
      loss.backward();
    }
    c10::Event reached(ctx.device().type());
    reached.record(of_caller);
    reached.block(of_forward);
  }
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : sharded.parameters())
    gradients.push_back(parameter.grad().cpu());
  return gradients;
}

// Hooks of a fully sharded model gather and reduce on the stream of its forward, and end on the
// caller's.
void sharded_beside(muster::Context& ctx) {
  const auto expected = parts_after_steps(ctx, /*beside=*/false);
  const auto got = parts_after_steps(ctx, /*beside=*/true);
  for (size_t i = 0; i < got.size(); ++i)
    expect(torch::equal(got[i], expected[i]), muster::cat("the bits of gradient ", i));
}

// A call that is started on one stream and waited for on another, with tensors that have to be
// copied.
void wait_beside(muster::Context& ctx) {
  const auto columns = torch::ones({8, 4}, ctx.device());
  auto work = ctx.process_group().all_reduce_async(columns.t());
  {
    const c10::StreamGuard on_another(stream_of_pool(ctx.device()));
    columns.record_stream(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(ctx.device()));
    work.wait();
    expect(columns.cpu().eq(ctx.world_size()).all().item<bool>(), "the sum of all ranks");
  }
}

// The other ranks come to the call once rank 0 has seen that its own stream is idle: only the
// stream that waits for the call waits for them.
void start_and_go_on(muster::Context& ctx) {
  const std::filesystem::path seen = ctx.run_dir() + "/idle";
  const auto numbers = torch::ones({8}, ctx.device());
  const c10::Stream own = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(ctx.device());
  ctx.process_group().all_reduce(numbers);
  own.synchronize();
  while (ctx.rank() != 0 && !std::filesystem::exists(seen))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  auto work = ctx.process_group().all_reduce_async(numbers);
  const c10::StreamGuard on_another(stream_of_pool(ctx.device()));
  numbers.record_stream(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(ctx.device()));
  work.wait();
  if (ctx.rank() == 0) {
    expect(own.query(), "the stream that started the call to go on");
    std::ofstream(seen).put('\n');
  }
  const auto expected = ctx.world_size() * ctx.world_size();
  expect(numbers.cpu().eq(expected).all().item<bool>(), "the sum of all ranks");
}

// What NCCL does not have, or does otherwise than the host's backends, is refused by name.
void refuse_reductions(muster::Context& ctx) {
  using muster::ReduceOp;
  auto& group = ctx.process_group();
  const auto integers = torch::ones({4}, torch::TensorOptions(torch::kLong).device(ctx.device()));
  const auto flags = torch::ones({4}, torch::TensorOptions(torch::kBool).device(ctx.device()));
  const auto shorts = torch::ones({4}, torch::TensorOptions(torch::kShort).device(ctx.device()));
  const auto refuses = [&](const at::Tensor& tensor, ReduceOp op, const std::string& got) {
    std::string said = "nothing";
    try {
      group.all_reduce(tensor, op);
    } catch (const muster::Error& error) {
      said = error.what();
    }
    expect(said.find("all_reduce: expected a reduction that NCCL has, got " + got) == 0,
           muster::cat("a refusal of ", got, ", got ", said));
  };
  refuses(integers, ReduceOp::band, "band of Long");
  refuses(integers, ReduceOp::bor, "bor of Long");
  refuses(integers, ReduceOp::bxor, "bxor of Long");
  refuses(integers, ReduceOp::avg, "avg of Long");
  refuses(flags, ReduceOp::avg, "avg of Bool");
  refuses(flags, ReduceOp::sum, "sum of Bool");
  refuses(shorts, ReduceOp::sum, "sum of Short");
  refuses(shorts, ReduceOp::max, "max of Short");
  group.broadcast(shorts, 0);
  group.all_reduce(integers);
  expect(integers.eq(ctx.world_size()).all().item<bool>(), "a sum of integers");
  const auto on_host = torch::ones({4}, torch::kLong);
  group.all_reduce(on_host, ReduceOp::bor);
  expect(on_host.eq(1).all().item<bool>(), "bits on the host");
}

}  // namespace

Probes value_probes() {
  return {
      {"sync batch norm", sync_batch_norm},
      {"data parallel", data_parallel},
      {"high priority", sub_group},
      {"split", sub_group},
      {"no split", sub_group},
      {"drop groups", drop_groups},
      {"averages", average_gradients},
      {"hooks beside", hooks_beside},
      {"sharded beside", sharded_beside},
      {"wait beside", wait_beside},
      {"go on beside", start_and_go_on},
      {"refused reductions", refuse_reductions},
  };
}

}  // namespace gpu_probe
