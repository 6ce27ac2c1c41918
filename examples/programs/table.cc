// Predicts prices from a table whose columns have different scales.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

namespace nn = torch::nn;

void train(muster::Context& ctx) {
  const auto houses = muster::read_csv_dataset("houses.csv", {.label = "price", .classes = false});
  const auto parts = muster::random_split(houses, {0.8, 0.2}, {.seed = 1});
  muster::StandardScaler scaler(houses.features().size(1));
  scaler->fit(parts[0]);
  auto loader = ctx.loader(parts[0], {.batch_size = 32});
  auto held_out = ctx.loader(parts[1], {.batch_size = 64}, {.shuffle = false, .pad = false});

  torch::manual_seed(ctx.seed(1));
  nn::Sequential net(scaler, nn::Linear(4, 64), nn::ReLU(), nn::Linear(64, 1));
  net->to(ctx.device());
  muster::optim::AdamW optimizer(net->parameters(), 3e-2);
  muster::Metrics metrics(ctx, {.folder = "runs/table"});
  muster::Checkpoints checkpoints(ctx,
                                  {.folder = "runs/table",
                                   .every = 20,
                                   .best = {{.metric = "error", .patience = 3}},
                                   .resume = true});
  checkpoints.add("model", net).add("optimizer", optimizer).add("houses", loader);
  checkpoints.add("metrics", metrics);
  checkpoints.restore();

  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::TrainStep step(model, optimizer, {.clip_norm = 100.0});
  while (loader.epoch() < 30 && !checkpoints.stops_early()) {
    for (const auto& batch : loader) {
      const auto loss = step(
          batch, [&] { return torch::mse_loss(model(batch.features).squeeze(1), batch.labels); });
      metrics.mean("loss", loss, batch.size());
      if (loader.position().consumed > 0 && checkpoints.save_or_stop(loader.position().step))
        return;
    }
    const double error = muster::evaluate(ctx, net, held_out, [](auto& net, const auto& batch) {
      return (net->forward(batch.features).squeeze(1) - batch.labels).abs();
    });
    metrics.write(loader.position().step, {{"error", error}});
    checkpoints.save_if_best(loader.position().step, error);
  }
  if (ctx.is_main())
    std::cout << "error " << checkpoints.best()->value << std::endl;
}

int main(int argc, char** argv) {
  return muster::run(argc, argv, train);
}
