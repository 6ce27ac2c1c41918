// Trains a classifier on a folder of pictures, with a sub-folder for each class.
#include <iostream>

#include "network.h"

constexpr int64_t kSteps = 200;

at::Tensor augmented(const muster::EncodedImage& image, muster::Generator& rng) {
  const auto part = transform::random_resized_crop(image, 32, 32, rng, {.scale = {0.6, 1.0}});
  return normalized(part, rng);
}

void train(muster::Context& ctx) {
  const muster::ImageFolder pictures("pictures/train", {.transform = augmented});
  const muster::ImageFolder others("pictures/test", {.transform = normalized});
  auto loader = ctx.loader(pictures, {.batch_size = 16, .workers = 1});
  auto held_out = ctx.loader(others, {.batch_size = 64}, {.shuffle = false, .pad = false});

  torch::manual_seed(ctx.seed(1));
  Network net(std::ssize(pictures.classes()));
  net->to(ctx.device());
  muster::optim::AdamW optimizer(net->parameters(), 3e-3);
  muster::Schedule schedule(optimizer, muster::rate::cosine({.steps = kSteps}));
  muster::Metrics metrics(ctx, {.folder = "runs/classifier"});
  muster::Checkpoints checkpoints(ctx, {.folder = "runs/classifier", .every = 50, .resume = true});
  checkpoints.add("model", net).add("optimizer", optimizer).add("schedule", schedule);
  checkpoints.add("pictures", loader).add("metrics", metrics);
  checkpoints.restore();

  muster::DistributedDataParallel model(net, ctx.process_group());
  muster::TrainStep step(model, optimizer, {.clip_norm = 1.0, .schedule = &schedule});
  for (const auto& batch : loader.steps(kSteps)) {
    const auto loss =
        step(batch, [&] { return torch::cross_entropy_loss(model(batch.image), batch.label); });
    metrics.mean("loss", loss, batch.size());
    metrics.write_every(20, loader.position().step, {{"lr", schedule.lr()}});
    if (checkpoints.save_or_stop(loader.position().step))
      return;
  }
  const double top1 = muster::evaluate(ctx, net, held_out, [](Network& net, const auto& batch) {
    return net(batch.image).argmax(1).eq(batch.label);
  });
  if (ctx.is_main())
    std::cout << "top1 " << top1 << std::endl;
}

int main(int argc, char** argv) {
  return muster::run(argc, argv, train);
}
