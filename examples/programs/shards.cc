// Trains on tar shards, which are read from beginning to end.
#include <iostream>

#include "network.h"

constexpr int64_t kSteps = 200;

muster::ImageExample decoded(const muster::WebSample& sample, muster::Generator& rng) {
  const auto image = muster::decode_image(sample.file("png"), sample.place());
  return {normalized(image, rng), torch::tensor(std::stoi(sample.file("cls")), torch::kLong)};
}

void train(muster::Context& ctx) {
  const muster::WebShards shards(
      muster::shards_of("shards/train-{000..007}.tar"), decoded, {.shuffle_buffer = 200});
  auto loader = ctx.loader(shards, {.batch_size = 16, .workers = 1});

  torch::manual_seed(ctx.seed(1));
  Network net(10);
  net->to(ctx.device());
  muster::optim::AdamW optimizer(net->parameters(), 3e-3);
  muster::Schedule schedule(optimizer, muster::rate::cosine({.steps = kSteps}));
  muster::Metrics metrics(ctx, {.folder = "runs/shards"});
  muster::Checkpoints checkpoints(ctx, {.folder = "runs/shards", .every = 50, .resume = true});
  checkpoints.add("model", net).add("optimizer", optimizer).add("schedule", schedule);
  checkpoints.add("shards", loader).add("metrics", metrics);
  checkpoints.restore();

  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::TrainStep step(model, optimizer, {.clip_norm = 1.0, .schedule = &schedule});
  for (const auto& batch : loader.steps(kSteps)) {
    at::Tensor logits;
    const auto loss = step(batch, [&] {
      logits = model(batch.image);
      return torch::cross_entropy_loss(logits, batch.label);
    });
    metrics.mean("loss", loss, batch.size());
    metrics.accuracy("top1", logits, batch.label);
    metrics.write_every(10, loader.position().step, {{"lr", schedule.lr()}});
    if (checkpoints.save_or_stop(loader.position().step))
      return;
  }
}

int main(int argc, char** argv) {
  return muster::run(argc, argv, train);
}
