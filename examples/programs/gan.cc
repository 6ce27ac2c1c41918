// Trains a GAN on pictures and noise: two loaders with one position, two models.
#include <muster/muster.h>
#include <torch/torch.h>

namespace nn = torch::nn;
namespace transform = muster::transform;
constexpr int64_t kNoise = 16, kPixels = 3 * 32 * 32, kSteps = 200;

struct Noise : muster::Dataset<at::Tensor> {
  int64_t size() const override { return 4096; }
  at::Tensor get(int64_t /*index*/, muster::Generator& rng) const override {
    return torch::randn({kNoise}, rng.torch());
  }
};

at::Tensor flat(const at::Tensor& image, muster::Generator& /*rng*/) {
  return transform::normalize(image, {0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}).flatten();
}

void train(muster::Context& ctx) {
  const muster::ImageFolder pictures("pictures/train", {.transform = flat});
  auto real = ctx.loader(pictures, {.batch_size = 32, .workers = 1});
  auto noise = ctx.loader(Noise(), {.batch_size = 32});
  muster::ZipLoaders both(real, noise);

  torch::manual_seed(ctx.seed(1));
  nn::Sequential maker(nn::Linear(kNoise, 128), nn::ReLU(), nn::Linear(128, kPixels), nn::Tanh());
  nn::Sequential judge(nn::Linear(kPixels, 128), nn::LeakyReLU(), nn::Linear(128, 1));
  maker->to(ctx.device());
  judge->to(ctx.device());
  muster::optim::Adam of_maker(maker->parameters(), 2e-4), of_judge(judge->parameters(), 2e-4);
  muster::Metrics metrics(ctx, {.folder = "runs/gan"});
  muster::Checkpoints checkpoints(ctx, {.folder = "runs/gan", .every = 50, .resume = true});
  checkpoints.add("maker", maker).add("of_maker", of_maker).add("judge", judge);
  checkpoints.add("of_judge", of_judge).add("data", both).add("metrics", metrics);
  checkpoints.restore();

  muster::DistributedDataParallel makes(maker, ctx.process_group());
  muster::DistributedDataParallel judges(judge, ctx.process_group());
  muster::TrainStep train_maker(makes, of_maker, {.clip_norm = 1.0, .frozen = {judges}});
  muster::TrainStep train_judge(judges, of_judge, {.clip_norm = 1.0, .frozen = {makes}});
  const auto bce = [](const at::Tensor& scores, double target) {
    return torch::binary_cross_entropy_with_logits(scores, torch::full_like(scores, target));
  };
  for (const auto& [picture, seed] : both.steps(kSteps)) {
    const auto of_judges = train_judge(
        picture, [&] { return bce(judges(picture.image), 1) + bce(judges(makes(seed)), 0); });
    const auto of_makes = train_maker(seed, [&] { return bce(judges(makes(seed)), 1); });
    metrics.mean("judge", of_judges, picture.size());
    metrics.mean("maker", of_makes, seed.size());
    metrics.write_every(10, both.step());
    if (checkpoints.save_or_stop(both.step()))
      return;
  }
}

int main(int argc, char** argv) {
  return muster::run(argc, argv, train);
}
