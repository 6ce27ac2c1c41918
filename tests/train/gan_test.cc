// Two models, each with its training step: what two ranks have trained equals one process on the
// joined batches.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>

#include "muster/train/step.h"
#include "tests/support/ranks.h"
#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using Options2d = torch::nn::Conv2dOptions;
using Transposed2d = torch::nn::ConvTranspose2dOptions;

// DCGAN's, small: noise [n, 6, 1, 1] → images [n, 1, 8, 8].
struct GeneratorImpl : torch::nn::Module {
  GeneratorImpl() {
    register_module("up1", up1);
    register_module("up2", up2);
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& noise) { return torch::tanh(up2(torch::relu(up1(noise)))); }
  torch::nn::ConvTranspose2d up1{Transposed2d(6, 5, 4)};
  torch::nn::ConvTranspose2d up2{Transposed2d(5, 1, 4).stride(2).padding(1)};
};
TORCH_MODULE(Generator);

struct DiscriminatorImpl : torch::nn::Module {
  DiscriminatorImpl() {
    register_module("down1", down1);
    register_module("down2", down2);
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& images) {
    return down2(torch::leaky_relu(down1(images), 0.2)).flatten();
  }
  torch::nn::Conv2d down1{Options2d(1, 4, 4).stride(2).padding(1)};
  torch::nn::Conv2d down2{Options2d(4, 1, 4)};
};
TORCH_MODULE(Discriminator);

struct GanPair {
  Generator generator;
  Discriminator discriminator;
};

// Ranks are threads with one generator of random numbers for all.
GanPair seeded_gan() {
  static std::mutex seeding;
  const std::lock_guard lock(seeding);
  torch::manual_seed(17);
  GanPair pair{.generator = nullptr, .discriminator = nullptr};
  pair.generator = Generator();
  pair.discriminator = Discriminator();
  return pair;
}

constexpr int64_t kMicroBatch = 3;
constexpr int64_t kMicroBatches = 2;

// Numbers of one step for all samples: what each sample has does not depend on who computes it.
struct GanData {
  at::Tensor real, noise, mix;
};
GanData gan_data(int step, int64_t samples) {
  const auto generator = at::detail::createCPUGenerator(100 + static_cast<uint64_t>(step));
  return {.real = torch::randn({samples, 1, 8, 8}, generator, torch::kDouble),
          .noise = torch::randn({samples, 6, 1, 1}, generator, torch::kDouble),
          .mix = torch::rand({samples, 1, 1, 1}, generator, torch::kDouble)};
}

struct MicroBatch {
  GanData data;
  double weight = 1;
  bool last = true;
};

GanData rows_of(const GanData& data, const at::Tensor& rows) {
  return {.real = data.real.index_select(0, rows),
          .noise = data.noise.index_select(0, rows),
          .mix = data.mix.index_select(0, rows)};
}

// Micro-batches of one of two ranks, or those of both joined (rank -1), or all of the step in one.
std::vector<MicroBatch> micro_batches(int step, int rank, bool in_one) {
  const auto all = gan_data(step, 2 * kMicroBatches * kMicroBatch);
  if (in_one)
    return {{.data = all}};
  std::vector<MicroBatch> found;
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    const auto rows_of_rank = [&](int64_t of) {
      const int64_t begin = (of * kMicroBatches + i) * kMicroBatch;
      return torch::arange(begin, begin + kMicroBatch);
    };
    const auto rows =
        rank >= 0 ? rows_of_rank(rank) : torch::cat({rows_of_rank(0), rows_of_rank(1)});
    found.push_back({.data = rows_of(all, rows),
                     .weight = 1.0 / kMicroBatches,
                     .last = i + 1 == kMicroBatches});
  }
  return found;
}

template <class G, class D>
at::Tensor dcgan_discriminator_loss(G& generator, D& discriminator, const GanData& data) {
  const auto bce = [](const at::Tensor& logits, double target) {
    return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, target));
  };
  return bce(discriminator(data.real), 0.9) + bce(discriminator(generator(data.noise).detach()), 0);
}

template <class G, class D>
at::Tensor dcgan_generator_loss(G& generator, D& discriminator, const GanData& data) {
  const auto logits = discriminator(generator(data.noise));
  return torch::binary_cross_entropy_with_logits(logits, torch::ones_like(logits));
}

// The critic of WGAN-GP: the norm of its gradient at points between real and generated images is
// drawn to 1.
template <class G, class D>
at::Tensor wgan_critic_loss(G& generator, D& critic, const GanData& data) {
  const auto made = generator(data.noise).detach();
  auto between = (data.mix * data.real + (1 - data.mix) * made).requires_grad_(true);
  const auto slope = torch::autograd::grad({critic(between).sum()},
                                           {between},
                                           {},
                                           /*retain_graph=*/true,
                                           /*create_graph=*/true)[0];
  const auto penalty = (slope.flatten(1).norm(2, 1) - 1).square().mean();
  return critic(made).mean() - critic(data.real).mean() + 10 * penalty;
}

template <class G, class D>
at::Tensor wgan_generator_loss(G& generator, D& critic, const GanData& data) {
  return -critic(generator(data.noise)).mean();
}

enum class GanKind { dcgan, wgan_gp };
// How micro-batches of the two models follow each other.
enum class GanOrder { one_after_the_other, alternating };

template <class G, class D>
std::vector<double> train_gan(GanKind kind,
                              GanOrder order,
                              G& generator,
                              D& discriminator,
                              int rank,
                              const std::vector<at::Tensor>& of_generator,
                              const std::vector<at::Tensor>& of_discriminator) {
  torch::optim::Adam generator_optimizer(of_generator,
                                         torch::optim::AdamOptions(0.002).betas({0.5, 0.9}));
  torch::optim::Adam discriminator_optimizer(of_discriminator,
                                             torch::optim::AdamOptions(0.002).betas({0.5, 0.9}));
  TrainStep generator_step(
      generator, generator_optimizer, {.clip_norm = 5.0, .frozen = {discriminator}});
  TrainStep discriminator_step(discriminator, discriminator_optimizer, {.frozen = {generator}});
  std::vector<double> losses;
  const auto train_discriminator = [&](const MicroBatch& batch) {
    return discriminator_step(batch, [&] {
      return kind == GanKind::dcgan ? dcgan_discriminator_loss(generator, discriminator, batch.data)
                                    : wgan_critic_loss(generator, discriminator, batch.data);
    });
  };
  const auto train_generator = [&](const MicroBatch& batch) {
    return generator_step(batch, [&] {
      return kind == GanKind::dcgan ? dcgan_generator_loss(generator, discriminator, batch.data)
                                    : wgan_generator_loss(generator, discriminator, batch.data);
    });
  };
  for (int step = 0; step < 8; ++step) {
    const auto batches =
        micro_batches(step, rank, rank < 0 && order == GanOrder::one_after_the_other);
    double of_discriminator_loss = 0, of_generator_loss = 0;
    for (const MicroBatch& batch : batches) {
      of_discriminator_loss += train_discriminator(batch).template item<double>() * batch.weight;
      if (order == GanOrder::alternating && !batch.last)
        of_generator_loss += train_generator(batch).template item<double>() * batch.weight;
    }
    for (const MicroBatch& batch : batches) {
      if (order == GanOrder::alternating && !batch.last)
        continue;
      of_generator_loss += train_generator(batch).template item<double>() * batch.weight;
    }
    losses.insert(losses.end(), {of_discriminator_loss, of_generator_loss});
  }
  return losses;
}

std::vector<double> weights_of_gan(GanPair& pair) {
  std::vector<double> all;
  for (torch::nn::Module* module : {static_cast<torch::nn::Module*>(pair.generator.get()),
                                    static_cast<torch::nn::Module*>(pair.discriminator.get())}) {
    for (const at::Tensor& parameter : module->parameters()) {
      const auto numbers = numbers_of(parameter);
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
  }
  return all;
}

// Sums of parts are rounded otherwise than the sum of all; Adam divides small numbers by small
// ones.
constexpr double kGanRounding = 1e-11;

void compare_with_one_process(GanKind kind, GanOrder order, const char* name) {
  std::vector<std::vector<double>> losses(2);
  std::vector<double> weights;
  run_ranks(2, [&](ProcessGroup& group) {
    GanPair pair = seeded_gan();
    DistributedDataParallel generator(pair.generator, group);
    DistributedDataParallel discriminator(pair.discriminator, group);
    losses[static_cast<size_t>(group.rank())] = train_gan(kind,
                                                          order,
                                                          generator,
                                                          discriminator,
                                                          group.rank(),
                                                          generator.parameters(),
                                                          discriminator.parameters());
    if (group.rank() == 0)
      weights = weights_of_gan(pair);
  });
  GanPair pair = seeded_gan();
  const auto first = weights_of_gan(pair);
  const auto expected = train_gan(kind,
                                  order,
                                  pair.generator,
                                  pair.discriminator,
                                  -1,
                                  pair.generator->parameters(),
                                  pair.discriminator->parameters());
  std::vector<double> mean;
  for (size_t i = 0; i < expected.size(); ++i)
    mean.push_back((losses[0][i] + losses[1][i]) / 2);
  const double of_losses = largest_difference(mean, expected);
  const double of_weights = largest_difference(weights, weights_of_gan(pair));
  std::cout << "  " << std::left << std::setw(22) << name
            << " losses of 8 steps of 2 models: largest difference " << of_losses
            << ", weights: " << of_weights << " (bound " << kGanRounding << ")\n";
  EXPECT_LE(of_losses, kGanRounding);
  EXPECT_LE(of_weights, kGanRounding);
  EXPECT_GT(largest_difference(first, weights), 0.01) << "nothing was trained";
}

TEST(Gan, DcganOnTwoRanksIsOneProcessOnTheJoinedBatch) {
  compare_with_one_process(GanKind::dcgan, GanOrder::one_after_the_other, "DCGAN");
}

TEST(Gan, WganWithGradientPenaltyOnTwoRanksIsOneProcessOnTheJoinedBatch) {
  compare_with_one_process(GanKind::wgan_gp, GanOrder::one_after_the_other, "WGAN-GP");
}

TEST(Gan, MicroBatchesOfBothModelsMayAlternate) {
  compare_with_one_process(GanKind::dcgan, GanOrder::alternating, "DCGAN, alternating");
  compare_with_one_process(GanKind::wgan_gp, GanOrder::alternating, "WGAN-GP, alternating");
}

}  // namespace
}  // namespace muster::testing
