// Trains on two ranks, evaluates after every second step, keeps the best checkpoint, and stops
// early. Prints what each rank has at the end.
//
//   best_probe --kill-at N     in its first attempt rank 1 dies at once after step N
#include <muster/muster.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/support/digest.h"

namespace {

muster::TensorDataset some_points(int64_t samples, uint64_t seed) {
  const auto x = torch::randn({samples, 4}, at::detail::createCPUGenerator(seed));
  return {x, x.sum(1).gt(0).to(torch::kLong)};
}

void keep_best_and_print(muster::Context& ctx, int64_t kill_at) {
  ctx.seed_all(1);
  torch::nn::Sequential net(torch::nn::Linear(4, 16),
                            torch::nn::BatchNorm1d(16),
                            torch::nn::Dropout(0.5),
                            torch::nn::Linear(16, 2));
  net->to(ctx.device());
  torch::optim::SGD optimizer(net->parameters(), 1.0);
  auto data = ctx.loader(some_points(60, 2), {.batch_size = 4});
  auto held_out =
      ctx.loader(some_points(41, 3), {.batch_size = 8}, {.shuffle = false, .pad = false});
  muster::Metrics metrics(ctx);
  muster::Checkpoints checkpoints(
      ctx,
      {.every = 3,
       .keep_last = 2,
       .best = {{.metric = "top1", .larger_is_better = true, .patience = 6, .min_delta = 0.01}}});
  checkpoints.add("model", net.ptr()).add("optimizer", optimizer);
  checkpoints.add("data", data).add("metrics", metrics);
  checkpoints.restore();
  muster::DistributedDataParallel model(net.ptr(), ctx.process_group());
  muster::TrainStep step(model, optimizer);
  for (const auto& batch : data.steps(60)) {
    const auto loss =
        step(batch, [&] { return torch::cross_entropy_loss(model(batch.features), batch.labels); });
    metrics.mean("loss", loss, static_cast<double>(batch.size()));
    const int64_t done = data.position().step;
    if (done % 2 == 0) {
      muster::Mean test_loss;
      muster::Accuracy top1;
      const auto fill = [&](auto& net, const auto& held) {
        const auto logits = net(held.features);
        test_loss.add(torch::cross_entropy_loss(logits, held.labels), held.samples);
        top1.add(logits, held.labels);
      };
      muster::evaluate(ctx, model, held_out, fill, test_loss, top1);
      metrics.write(done, {{"test_loss", test_loss.value()}, {"top1", top1.value()}});
      checkpoints.save_if_best(done, top1.value());
    }
    if (checkpoints.save_or_stop(done))
      return;
    if (done == kill_at && ctx.rank() == 1 && ctx.env().attempt == 0)
      std::raise(SIGKILL);
    if (checkpoints.stops_early())
      break;
  }
  const auto logits = muster::predict(
      ctx, model, held_out, [](auto& net, const auto& batch) { return net(batch.features); });
  torch::nn::Sequential best(torch::nn::Linear(4, 16),
                             torch::nn::BatchNorm1d(16),
                             torch::nn::Dropout(0.5),
                             torch::nn::Linear(16, 2));
  muster::load_weights(*best, checkpoints.best()->path, {}, ctx.process_group());
  using namespace muster::testing;
  std::printf(
      "rank %d stopped after %d best step %d top1 %a weights %s best weights %s logits %s\n",
      ctx.rank(),
      static_cast<int>(data.position().step),
      static_cast<int>(checkpoints.best()->step),
      checkpoints.best()->value,
      digest_of(net->parameters()).c_str(),
      digest_of(best->parameters()).c_str(),
      ctx.is_main() ? digest_of({logits}).c_str() : "-");
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t kill_at = argc > 2 ? std::atoll(argv[2]) : 0;
  return muster::run(argc, argv, [&](muster::Context& ctx) { keep_best_and_print(ctx, kill_at); });
}
