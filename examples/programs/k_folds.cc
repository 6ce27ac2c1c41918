// Cross-validates a classifier over five folds, each with its part of every class.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

namespace nn = torch::nn;
constexpr int64_t kSteps = 100;

void train(muster::Context& ctx) {
  const auto digits = muster::read_csv_dataset("digits.csv.gz");
  std::vector<double> scores;
  for (const auto& [train, test] : muster::k_folds(digits, 5, {.labels = digits.labels()})) {
    const auto folder = ctx.run_dir(muster::cat("runs/k_folds/", scores.size()));
    auto loader = ctx.loader(train, {.batch_size = 32});
    auto held_out = ctx.loader(test, {.batch_size = 64}, {.shuffle = false, .pad = false});

    torch::manual_seed(ctx.seed(1));
    nn::Sequential net(nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 10));
    net->to(ctx.device());
    muster::optim::AdamW optimizer(net->parameters(), 3e-3);
    muster::Metrics metrics(ctx, {.folder = folder});
    muster::Checkpoints checkpoints(ctx, {.folder = folder, .every = 50, .resume = true});
    checkpoints.add("model", net).add("optimizer", optimizer).add("digits", loader);
    checkpoints.add("metrics", metrics);
    checkpoints.restore();

    muster::DistributedDataParallel model(net, ctx.process_group());
    muster::TrainStep step(model, optimizer, {.clip_norm = 1.0});
    for (const auto& batch : loader.steps(kSteps)) {
      const auto loss = step(
          batch, [&] { return torch::cross_entropy_loss(model(batch.features), batch.labels); });
      metrics.mean("loss", loss, batch.size());
      metrics.write_every(10, loader.position().step);
      if (checkpoints.save_or_stop(loader.position().step))
        return;
    }
    scores.push_back(muster::evaluate(ctx, net, held_out, [](auto& net, const auto& batch) {
      return net->forward(batch.features).argmax(1).eq(batch.labels);
    }));
  }
  const auto all = torch::tensor(scores);
  if (ctx.is_main())
    std::cout << "top1 " << all.mean().item<double>() << " ± " << all.std().item<double>()
              << std::endl;
}

int main(int argc, char** argv) {
  return muster::run(argc, argv, train);
}
