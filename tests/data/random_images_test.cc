// What random transforms draw: torchvision's ranges, and the same for an image alone, in a batch,
// in a worker and on another rank.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "muster/data/affine.h"
#include "muster/data/auto_augment.h"
#include "muster/data/blur.h"
#include "muster/data/color.h"
#include "muster/data/erasing.h"
#include "muster/data/loader.h"
#include "muster/data/transforms.h"
#include "tests/data/numbers.h"
#include "tests/data/some_pictures.h"

namespace muster {
namespace {

using test::sampler_of;
using test::some_bytes;
const transform::ColorJitterOptions kJitter{
    .brightness = 0.4, .contrast = 0.4, .saturation = {0.5, 2}, .hue = 0.1};

// A transform of one image with its generator, and of a batch with one for each.
struct Random {
  std::string name;
  std::function<at::Tensor(const at::Tensor&, Generator&)> of_one;
  std::function<at::Tensor(const at::Tensor&, Generators&)> of_batch;
};

template <class Change>
Random random_one(const std::string& name, const Change& change) {
  return {name,
          [change](const at::Tensor& image, Generator& rng) { return change(image, rng); },
          [change](const at::Tensor& images, Generators& rngs) { return change(images, rngs); }};
}

std::vector<Random> all_random() {
  namespace t = transform;
  return {
      random_one("color_jitter", [](auto& x, auto& r) { return t::color_jitter(x, r, kJitter); }),
      random_one("random_grayscale",
                 [](auto& x, auto& r) { return t::random_grayscale(x, r, 0.5); }),
      random_one(
          "random_rotation",
          [](auto& x, auto& r) { return t::random_rotation(x, r, {.degrees = {-40, 200}}); }),
      random_one("random_affine",
                 [](auto& x, auto& r) {
                   return t::random_affine(x,
                                           r,
                                           {.degrees = {-10, 10},
                                            .translate = {0.2, 0.1},
                                            .scale = {0.8, 1.2},
                                            .shear_x = {-5, 5},
                                            .interpolation = t::Interpolation::bilinear});
                 }),
      random_one(
          "random_gaussian_blur",
          [](auto& x, auto& r) { return t::random_gaussian_blur(x, r, {.kernel = {5, 3}}); }),
      random_one("random_erasing", [](auto& x, auto& r) { return t::random_erasing(x, r); }),
      random_one("auto_augment", [](auto& x, auto& r) { return t::auto_augment(x, r); }),
      random_one("auto_augment of SVHN",
                 [](auto& x, auto& r) {
                   return t::auto_augment(x, r, {.policy = t::AutoAugmentPolicy::svhn});
                 }),
      random_one("rand_augment", [](auto& x, auto& r) { return t::rand_augment(x, r); }),
      random_one("trivial_augment_wide",
                 [](auto& x, auto& r) { return t::trivial_augment_wide(x, r); }),
      random_one("random_flip", [](auto& x, auto& r) { return t::random_flip(x, r); }),
      random_one("random_crop", [](auto& x, auto& r) { return t::random_crop(x, 22, 18, r, 3); }),
      random_one("random_resized_crop",
                 [](auto& x, auto& r) { return t::random_resized_crop(x, 22, 18, r); }),
      random_one("random_resized_crop",
                 [](auto& x, auto& r) {
                   return t::random_resized_crop(x, 30, 9, r, {.scale = {0.9, 1}, .ratio = {3, 4}});
                 }),
  };
}

constexpr int64_t kImages = 12;

std::vector<int64_t> places(int64_t from, int64_t to) {
  std::vector<int64_t> all;
  for (int64_t i = from; i < to; ++i)
    all.push_back(i);
  return all;
}

at::Tensor images_of_kind(bool bytes) {
  std::vector<at::Tensor> images;
  for (int64_t i = 0; i < kImages; ++i)
    images.push_back(some_bytes("rgb", 24, 20).roll(i, 2));
  const auto all = torch::stack(images);
  return bytes ? all : all.to(torch::kFloat) / 255;
}

at::Tensor one_by_one(const Random& random, const at::Tensor& images) {
  std::vector<at::Tensor> changed;
  for (int64_t i = 0; i < kImages; ++i) {
    Generator rng(1, 2, i);
    changed.push_back(random.of_one(images[i], rng));
  }
  return torch::stack(changed);
}

TEST(RandomImages, AreTheSameAloneAndInABatch) {
  for (const Random& random : all_random())
    for (const bool bytes : {true, false}) {
      const auto images = images_of_kind(bytes);
      const auto expected = one_by_one(random, images);
      EXPECT_FALSE(torch::equal(expected, images)) << random.name;
      Generators all(1, 2, places(0, kImages));
      EXPECT_TRUE(torch::equal(random.of_batch(images, all), expected)) << random.name;
      Generators first(1, 2, places(0, 5));
      Generators rest(1, 2, places(5, kImages));
      EXPECT_TRUE(torch::equal(torch::cat({random.of_batch(images.slice(0, 0, 5), first),
                                           random.of_batch(images.slice(0, 5), rest)}),
                               expected))
          << random.name;
      EXPECT_TRUE(torch::equal(images, images_of_kind(bytes)))
          << random.name << " changes its input";
    }
}

// With LibTorch's kernels of a true GPU a byte may be another by one, and a pixel its neighbour.
TEST(ImagesOnAGpu, ChangeAtRandomAsOnTheCpu) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "no GPU";
  const torch::Device gpu(torch::kCUDA, 0);
  for (const Random& random : all_random())
    for (const bool bytes : {true, false}) {
      const auto images = images_of_kind(bytes);
      const auto expected = one_by_one(random, images);
      Generators all(1, 2, places(0, kImages));
      const auto ours = random.of_batch(images.to(gpu), all);
      const auto apart = (ours.cpu().to(torch::kFloat) - expected.to(torch::kFloat)).abs();
      EXPECT_LE(apart.gt(bytes ? 1 : 1e-4).to(torch::kFloat).mean().item<double>(), 0.01)
          << random.name;
      Generators some(1, 2, places(3, 7));
      const auto part = random.of_batch(images.slice(0, 3, 7).to(gpu), some);
      EXPECT_TRUE(torch::equal(part.cpu(), ours.slice(0, 3, 7).cpu())) << random.name;
    }
}

// How often the host has waited for a GPU, which the stand-in counts.
TEST(ImagesOnAGpu, AreNotWaitedFor) {
  using Count = int64_t (*)();
  const auto waits = reinterpret_cast<Count>(::dlsym(RTLD_DEFAULT, "count_waits_so_far"));
  if (!torch::cuda::is_available() || waits == nullptr)
    GTEST_SKIP() << "no GPU that counts waits";
  const torch::Device gpu(torch::kCUDA, 0);
  for (const Random& random : all_random())
    for (const bool bytes : {true, false}) {
      const auto images = images_of_kind(bytes).to(gpu);
      Generators all(1, 2, places(0, kImages));
      const int64_t before = waits();
      const auto changed = random.of_batch(images, all);
      EXPECT_EQ(waits(), before) << random.name;
      EXPECT_TRUE(changed.cpu().defined());
      EXPECT_GT(waits(), before);
    }
}

TEST(ImagesOnAGpu, HaveNoiseWhereTheyAreErased) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "no GPU";
  const auto images = torch::zeros({kImages, 3, 30, 30});
  const transform::RandomErasingOptions noise{.probability = 1, .noise = true};
  Generators here(0, 0, places(0, kImages));
  Generators there = here;
  const auto expected = transform::random_erasing(images, here, noise);
  const auto ours = transform::random_erasing(images.to(torch::kCUDA), there, noise);
  EXPECT_TRUE(torch::equal(ours.cpu(), expected));
  EXPECT_GT(expected.abs().max().item<float>(), 1);
}

// A batch with one generator changes as one image: the same for all.
TEST(RandomImages, ChangeAlikeWithOneGenerator) {
  const auto image = some_bytes("rgb", 24, 20);
  const auto batch = torch::stack({image, image, image});
  Generator jittering(0, 0, 3);
  Generator same = jittering;
  const auto changed = transform::color_jitter(batch, jittering, kJitter);
  const auto alone = transform::color_jitter(image, same, kJitter);
  EXPECT_TRUE(torch::equal(changed, torch::stack({alone, alone, alone})));
  Generator turning(0, 0, 4);
  const auto turned = transform::random_rotation(batch, turning, {.degrees = {20, 30}});
  EXPECT_TRUE(torch::equal(turned[0], turned[2]));
  EXPECT_FALSE(torch::equal(turned[0], image));
}

// Whatever strides a size of 1 has.
TEST(RandomImages, HueOfOneRowOrColumn) {
  const auto row = torch::rand({3, 1, 5});
  const auto column = torch::rand({3, 5, 1});
  const auto turned = transform::adjust_hue(row, 0.1);
  EXPECT_TRUE(torch::equal(transform::adjust_hue(column.transpose(1, 2), 0.1),
                           transform::adjust_hue(column.transpose(1, 2).clone(), 0.1)));
  EXPECT_TRUE(
      torch::equal(transform::adjust_hue(row.transpose(1, 2), 0.1), turned.transpose(1, 2)));
}

// Factors are even over their range, and the order of changes is by chance.
TEST(RandomImages, JitterWithinTheirRanges) {
  const auto image = torch::full({3, 4, 4}, 0.25);
  double sum = 0;
  for (int i = 0; i < 1000; ++i) {
    Generator rng(0, 0, i);
    const auto value =
        transform::color_jitter(image, rng, {.brightness = 0.6}).max().item<double>() / 0.25;
    ASSERT_GE(value, 0.4 - 1e-6);
    ASSERT_LE(value, 1.6 + 1e-6);
    sum += value;
  }
  EXPECT_NEAR(sum / 1000, 1, 0.05);
  // The hue of red moves by a sixth at most, so it stays the strongest.
  const auto red = torch::tensor({1.0F, 0.0F, 0.0F}).view({3, 1, 1});
  for (int i = 0; i < 200; ++i) {
    Generator rng(0, 0, i);
    const auto moved = transform::color_jitter(red, rng, {.hue = 1.0 / 6});
    ASSERT_NEAR(moved[0].item<double>(), 1, 1e-5);
  }
  // Brightness before contrast, or after it.
  std::set<float> made;
  const auto stripes = some_bytes("rgb", 8, 8).to(torch::kFloat) / 255;
  for (int i = 0; i < 50; ++i) {
    Generator rng(0, 0, i);
    const auto changed = transform::color_jitter(
        stripes, rng, {.brightness = {2, 2}, .contrast = {0.5, 0.5}, .saturation = {0.1, 0.1}});
    made.insert(changed.sum().item<float>());
  }
  EXPECT_GE(made.size(), 2U);
  Generator rng(0, 0, 0);
  EXPECT_TRUE(torch::equal(transform::color_jitter(stripes, rng, {}), stripes));
}

TEST(RandomImages, AreErasedAsOftenAndAsMuchAsAsked) {
  const auto image = torch::ones({1, 60, 80});
  int erased = 0;
  for (int i = 0; i < 600; ++i) {
    Generator rng(0, 0, i);
    const auto hole = transform::random_erasing(image, rng, {.probability = 0.4}).eq(0)[0];
    if (!hole.any().item<bool>())
      continue;
    ++erased;
    const double rows = hole.any(1).sum().item<double>();
    const double columns = hole.any(0).sum().item<double>();
    const double area = hole.sum().item<double>();
    ASSERT_EQ(area, rows * columns);
    ASSERT_GT(area / (60 * 80), 0.015);
    ASSERT_LT(area / (60 * 80), 0.34);
    ASSERT_GT(rows / columns, 0.25);
    ASSERT_LT(rows / columns, 4);
  }
  EXPECT_NEAR(erased, 240, 45);
  Generator rng(0, 0, 0);
  const auto three = transform::random_erasing(
      torch::zeros({3, 20, 20}), rng, {.probability = 1, .value = {0.1, 0.2, 0.3}});
  EXPECT_FLOAT_EQ(three[2].max().item<float>(), 0.3F);
}

// A point above the middle goes to the left when an image turns counterclockwise.
TEST(RandomImages, TurnWithinTheirRange) {
  auto image = torch::zeros({1, 41, 41});
  image[0][5][20] = 1;
  for (int i = 0; i < 100; ++i) {
    Generator rng(0, 0, i);
    const auto turned = transform::random_rotation(
        image, rng, {.degrees = {10, 80}, .interpolation = transform::Interpolation::bilinear});
    const auto place = turned[0].flatten().argmax().item<int64_t>();
    ASSERT_LT(place % 41, 20);
    ASSERT_LT(place / 41, 20);
  }
}

// A sample whose image the batch changes, with the generator that get() had.
struct Photo {
  at::Tensor image;
  Generators rngs;
};

struct Photos : Dataset<Photo> {
  explicit Photos(bool in_get) : in_get(in_get) {}
  int64_t size() const override { return 10; }
  Photo get(int64_t index, Generator& rng) const override {
    auto image = some_bytes("rgb", 16, 12).roll(index, 1);
    if (in_get)
      image = transform::rand_augment(transform::color_jitter(image, rng, kJitter), rng);
    return {image, rng};
  }
  bool in_get;
};

// Every sample's image of two epochs, as a batch changes it.
std::map<int64_t, at::Tensor> augmented_images(const DataLoaderOptions& options,
                                               int ranks,
                                               bool in_get) {
  std::map<int64_t, at::Tensor> images;
  for (int rank = 0; rank < ranks; ++rank) {
    DataLoader loader(
        std::make_shared<const Photos>(in_get),
        sampler_of(10, {.num_replicas = ranks, .rank = rank, .shuffle = true, .seed = 5}),
        options);
    for (int64_t epoch = 0; epoch < 2; ++epoch)
      for (const auto& batch : loader) {
        Generators rngs = batch.rngs;
        auto changed = batch.image;
        if (!in_get)
          changed =
              transform::rand_augment(transform::color_jitter(batch.image, rngs, kJitter), rngs);
        for (int64_t i = 0; i < batch.size(); ++i)
          images[epoch * 100 + batch.sample_indices[i]] = changed[i];
      }
  }
  return images;
}

TEST(RandomImages, AreTheSameForAnyRanksWorkersAndBatches) {
  const torch::NoGradGuard no_grad;
  const auto expected = augmented_images({.batch_size = 1}, 1, /*in_get=*/true);
  ASSERT_EQ(expected.size(), 20U);
  EXPECT_FALSE(torch::equal(expected.at(3), expected.at(103)));
  const auto expect_same = [&](const std::map<int64_t, at::Tensor>& images) {
    ASSERT_EQ(images.size(), expected.size());
    for (const auto& [sample, image] : images)
      EXPECT_TRUE(torch::equal(image, expected.at(sample))) << sample;
  };
  expect_same(augmented_images({.batch_size = 4, .workers = 2}, 1, true));
  expect_same(augmented_images({.batch_size = 4}, 1, false));
  expect_same(augmented_images({.batch_size = 3, .workers = 2}, 1, false));
  expect_same(augmented_images({.batch_size = 2, .workers = 1}, 2, false));
}

// Another loader goes on where the first has stopped, on two ranks.
TEST(RandomImages, AreTheSameAfterAResume) {
  const torch::NoGradGuard no_grad;
  const auto expected = augmented_images({.batch_size = 1}, 1, /*in_get=*/true);
  const auto data = std::make_shared<const Photos>(/*in_get=*/false);
  const auto order = [](int ranks, int rank) {
    return sampler_of(10, {.num_replicas = ranks, .rank = rank, .shuffle = true, .seed = 5});
  };
  DataLoader first(data, order(1, 0), {.batch_size = 4});
  for (const auto& batch : first.steps(3))  // into the second epoch
    (void)batch.image;
  for (const int rank : {0, 1}) {
    DataLoader resumed(data, order(2, rank), {.batch_size = 2, .workers = 1});
    resumed.restore(first.position());
    const int64_t epoch = first.position().epoch;
    int64_t seen = 0;
    for (const auto& batch : resumed.steps(5)) {
      Generators rngs = batch.rngs;
      const auto changed =
          transform::rand_augment(transform::color_jitter(batch.image, rngs, kJitter), rngs);
      for (int64_t i = 0; i < batch.size(); ++i, ++seen)
        EXPECT_TRUE(torch::equal(changed[i], expected.at(epoch * 100 + batch.sample_indices[i])));
    }
    EXPECT_GE(seen, 3);
  }
}

// A copy goes on by itself, also that of LibTorch's.
TEST(RandomImages, GeneratorsAreCopiedWhole) {
  Generator rng(0, 0, 0);
  const auto first = torch::rand({3}, rng.torch());
  Generator copy = rng;
  EXPECT_EQ(copy(), rng());
  const auto second = torch::rand({3}, rng.torch());
  EXPECT_TRUE(torch::equal(torch::rand({3}, copy.torch()), second));
  copy = Generator(0, 0, 0);
  EXPECT_TRUE(torch::equal(torch::rand({3}, copy.torch()), first));
}

// There is nothing to change in none.
TEST(RandomImages, OfAnEmptyBatchAreNone) {
  for (const Random& random : all_random()) {
    Generators none;
    const auto changed = random.of_batch(torch::zeros({0, 3, 24, 20}, torch::kByte), none);
    EXPECT_EQ(changed.size(0), 0) << random.name;
  }
}

}  // namespace
}  // namespace muster
