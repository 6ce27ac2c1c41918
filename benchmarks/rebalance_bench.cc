// What Rebalance wins where one of two ranks is half as fast: samples a second with equal shares,
// with those that Rebalance finds, beginning from equal ones, and with the ideal ones, in turns.
//
//   rebalance_bench [STEPS]      120 a turn, 3 turns; rank 1 computes everything twice
#include <malloc.h>
#include <muster/muster.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kGlobalBatch = 48;
constexpr int kTurns = 3;

struct Pictures : muster::Dataset<std::pair<at::Tensor, at::Tensor>> {
  int64_t size() const override { return 4800; }
  std::pair<at::Tensor, at::Tensor> get(int64_t index, muster::Generator& /*rng*/) const override {
    const auto x =
        (torch::arange(3 * 16 * 16, at::kFloat) * (0.01 * static_cast<double>(index % 97))).sin();
    return {x.reshape({3, 16, 16}), at::scalar_tensor(index % 97 % 10, at::kLong)};
  }
};

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 32, 3).padding(1)),
                               torch::nn::ReLU(),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 32, 3).padding(1)),
                               torch::nn::ReLU(),
                               torch::nn::AdaptiveAvgPool2d(1),
                               torch::nn::Flatten(),
                               torch::nn::Linear(32, 10));
}

struct Turn {
  double samples_per_second = 0;
  std::vector<double> losses = {};
  std::vector<int64_t> shares = {};
};

Turn train(muster::Context& ctx, int64_t steps, std::vector<int64_t> shares, bool rebalances) {
  auto net = make_net();
  auto slow_net = make_net();
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::SGD optimizer(net->parameters(), 0.02);
  auto loader = ctx.loader(Pictures(), {.batch_size = kGlobalBatch / 2});
  muster::Rebalance rebalance(ctx.process_group(), std::move(shares), {.every = 10});
  rebalance.drive(loader);
  Turn turn;
  at::Tensor losses = torch::zeros({steps}, at::kDouble);
  ctx.process_group().barrier();
  const auto start = muster::Clock::now();
  for (const auto& batch : loader.steps(steps)) {
    const auto& [x, y] = batch;
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(model(x), y) * batch.weight;
    if (ctx.rank() == 1)
      torch::cross_entropy_loss(slow_net->forward(x), y).backward();
    loss.backward();
    optimizer.step();
    losses[loader.position().step - 1] = loss.item<double>() / ctx.world_size();
    if (rebalances)
      rebalance.step(model.reducer().compute_seconds(), batch.samples);
  }
  ctx.process_group().barrier();
  turn.samples_per_second =
      static_cast<double>(steps * kGlobalBatch) / muster::seconds_since(start);
  ctx.process_group().all_reduce(losses);
  turn.losses.assign(losses.data_ptr<double>(), losses.data_ptr<double>() + steps);
  turn.shares = rebalance.shares();
  return turn;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(muster::Context& ctx, int64_t steps) {
  if (ctx.world_size() != 2) {
    throw muster::Error(
        muster::ErrorCode::invalid_argument,
        muster::cat(
            "rebalance_bench: expected 2 ranks, got ", ctx.world_size(), "; muster run -n 2"));
  }
  at::set_num_threads(1);
  std::vector<double> equal, found, ideal, of_ideal;
  double furthest = 0;
  std::vector<int64_t> shares;
  for (int turn = 0; turn < kTurns; ++turn) {
    const Turn even = train(ctx, steps, {24, 24}, false);
    const Turn ours = train(ctx, steps, {24, 24}, true);
    const Turn best = train(ctx, steps, {32, 16}, false);
    equal.push_back(even.samples_per_second);
    found.push_back(ours.samples_per_second);
    ideal.push_back(best.samples_per_second);
    of_ideal.push_back(ours.samples_per_second / best.samples_per_second);
    shares = ours.shares;
    for (size_t step = 0; step < even.losses.size(); ++step)
      furthest = std::max(furthest, std::abs(even.losses[step] - ours.losses[step]));
  }
  if (!ctx.is_main())
    return;
  std::printf(
      "# two ranks, one half as fast, %lld samples a step; medians of %d turns of %lld steps\n",
      static_cast<long long>(kGlobalBatch),
      kTurns,
      static_cast<long long>(steps));
  std::printf("equal shares   24, 24  %8.0f samples a second\n", median(equal));
  std::printf("Rebalance      %lld, %lld  %8.0f\n",
              static_cast<long long>(shares[0]),
              static_cast<long long>(shares[1]),
              median(found));
  std::printf("ideal shares   32, 16  %8.0f\n", median(ideal));
  std::printf("losses of equal shares and of Rebalance differ by at most %.1e\n", furthest);
  std::printf("Rebalance / ideal: %.3f\n", median(of_ideal));
}

// Memory that is given back to the kernel after some steps and not after others would make a
// sample's time depend on the batch's size.
void keep_freed_memory() {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  const int64_t steps = argc > 1 ? std::max(20LL, std::atoll(argv[1])) : 120;
  return muster::run(argc, argv, [&](muster::Context& ctx) { measure(ctx, steps); });
}
