#include "muster/data/transforms.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/data/mix_up.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using transform::Interpolation;

// As pytorch_resize.py makes it.
at::Tensor bytes_picture(int64_t height, int64_t width) {
  const auto y = torch::arange(height).view({1, -1, 1});
  const auto x = torch::arange(width).view({1, 1, -1});
  const auto c = torch::arange(3).view({-1, 1, 1});
  return ((y * y * 7 + x * 13 + c * 50 + x * y) % 256).to(torch::kByte);
}

// The same values, a pixel's beside each other, as decoders give them.
at::Tensor interleaved(const at::Tensor& image) {
  return image.permute({1, 2, 0}).contiguous().permute({2, 0, 1});
}

int64_t sum_of_bits(const at::Tensor& image) {
  const auto bits = image.scalar_type() == torch::kByte ? image.contiguous()
                                                        : image.contiguous().view(torch::kInt);
  return (bits.to(torch::kLong).flatten() * torch::arange(1, bits.numel() + 1) % 1000003)
      .sum()
      .item<int64_t>();
}

TEST(Transforms, ResizesAsPyTorch) {
  const auto printed = test::run_python("tests/data/pytorch_resize.py");
  if (!printed)
    GTEST_SKIP() << "no Python with PyTorch";
  std::string ours;
  std::string interleaved_ones;
  for (const auto& [height, width, to_height, to_width] :
       {std::array<int64_t, 4>{400, 500, 224, 224}, {50, 40, 64, 100}, {33, 47, 33, 10}}) {
    const auto image = bytes_picture(height, width);
    for (const auto& values : {image, image.to(torch::kFloat) / 255}) {
      const bool is_bytes = values.scalar_type() == torch::kByte;
      const auto other_form = is_bytes ? interleaved(values) : values;
      for (const auto how : {Interpolation::bilinear, Interpolation::nearest}) {
        const auto number_of = [&](const at::Tensor& form) {
          const auto resized = transform::resize(form, to_height, to_width, how);
          return std::to_string(sum_of_bits(resized)) + "\n";
        };
        ours += number_of(values);
        interleaved_ones += number_of(other_form);
      }
    }
  }
  EXPECT_EQ(ours, *printed);
  EXPECT_EQ(interleaved_ones, *printed);
}

TEST(Transforms, ResizesToTheSameBitsWhereverColoursLie) {
  for (const auto& [height, width] :
       {std::pair{64, 48}, {9, 1}, {1, 9}, {7, 5}, {1, 1}, {2, 3}, {100, 131}}) {
    const auto image = bytes_picture(height, width);
    const auto pixels = interleaved(image);
    for (const int64_t rows : {1, 2, 7, 64}) {
      for (const int64_t columns : {2, 3, 5, 50}) {
        EXPECT_TRUE(torch::equal(transform::resize(pixels, rows, columns),
                                 transform::resize(image, rows, columns)))
            << height << "x" << width << " to " << rows << "x" << columns;
        if (height <= 2 || width <= 2)
          continue;
        EXPECT_TRUE(torch::equal(transform::resize(pixels.slice(1, 1).slice(2, 1), rows, columns),
                                 transform::resize(image.slice(1, 1).slice(2, 1), rows, columns)))
            << "a part of " << height << "x" << width << " to " << rows << "x" << columns;
      }
    }
  }
}

// LibTorch alone does not (see resize).
TEST(Transforms, ResizesToOneColumn) {
  for (const auto& [height, width] : {std::pair{64, 48}, {9, 1}, {1, 9}, {7, 5}}) {
    const auto image = bytes_picture(height, width);
    for (const int64_t rows : {1, 2, 7, 64}) {
      const auto expected = transform::resize(image.to(torch::kFloat), rows, 1);
      for (const auto& form : {image, interleaved(image)}) {
        const auto resized = transform::resize(form, rows, 1);
        EXPECT_LE((resized.to(torch::kFloat) - expected).abs().max().item<float>(), 1.5)
            << height << "x" << width << " to " << rows;
      }
    }
  }
}

TEST(Transforms, ResizesTheShorterSide) {
  EXPECT_EQ(transform::resize_shorter(bytes_picture(40, 60), 20).sizes(),
            (std::vector<int64_t>{3, 20, 30}));
  EXPECT_EQ(transform::resize_shorter(bytes_picture(75, 50), 33).sizes(),
            (std::vector<int64_t>{3, 49, 33}));
  EXPECT_EQ(transform::resize_shorter(bytes_picture(20, 20), 20).sizes(),
            (std::vector<int64_t>{3, 20, 20}));
}

TEST(Transforms, CutsParts) {
  const auto image = bytes_picture(10, 12);
  EXPECT_TRUE(
      torch::equal(transform::crop(image, 2, 3, 4, 5), image.slice(1, 2, 6).slice(2, 3, 8)));
  EXPECT_TRUE(
      torch::equal(transform::center_crop(image, 4, 4), image.slice(1, 3, 7).slice(2, 4, 8)));
  EXPECT_TRUE(torch::equal(transform::flip(image), image.flip(2)));
}

// Every place that a padded picture has, and as often.
TEST(Transforms, CutsAnywhereWithPadding) {
  const auto image = bytes_picture(4, 5).clamp_min(1);
  const auto padded = torch::constant_pad_nd(image, {2, 2, 2, 2});
  std::vector<int> seen(5 * 6);
  for (int i = 0; i < 600; ++i) {
    Generator rng(0, 0, i);
    const auto part = transform::random_crop(image, 4, 4, rng, 2);
    int found = -1;
    for (int64_t place = 0; place < 5 * 6; ++place)
      if (torch::equal(part, padded.narrow(1, place / 6, 4).narrow(2, place % 6, 4)))
        found = static_cast<int>(place);
    ASSERT_GE(found, 0);
    ++seen[static_cast<size_t>(found)];
  }
  EXPECT_GT(*std::min_element(seen.begin(), seen.end()), 5);
  EXPECT_LT(*std::max_element(seen.begin(), seen.end()), 45);
}

TEST(Transforms, CutsPartsOfRandomSize) {
  const auto image = bytes_picture(60, 80);
  for (int i = 0; i < 50; ++i) {
    Generator rng(0, 0, i);
    Generator same(0, 0, i);
    const auto part = transform::random_resized_crop(image, 16, 24, rng);
    ASSERT_EQ(part.sizes(), (std::vector<int64_t>{3, 16, 24}));
    ASSERT_TRUE(torch::equal(part, transform::random_resized_crop(image, 16, 24, same)));
  }
  Generator rng(0, 0, 0);
  EXPECT_EQ(transform::random_resized_crop(bytes_picture(2, 100), 4, 4, rng).sizes(),
            (std::vector<int64_t>{3, 4, 4}));
  EXPECT_TRUE(
      torch::equal(transform::random_resized_crop(
                       image, 60, 80, rng, {.scale = {1, 1}, .ratio = {80.0 / 60, 80.0 / 60}}),
                   image));
}

// Every pixel of the mask is the class of what the picture shows there.
TEST(Transforms, AMaskIsCutAndFlippedAsItsPicture) {
  constexpr int64_t kHeight = 60, kWidth = 80, kBlock = 20, kBorder = 3;
  const auto y = torch::arange(kHeight).view({1, -1, 1}).expand({1, kHeight, kWidth});
  const auto x = torch::arange(kWidth).view({1, 1, -1}).expand({1, kHeight, kWidth});
  const auto picture = torch::cat({x, y}).to(torch::kFloat);
  const auto class_at = [](const at::Tensor& row, const at::Tensor& column) {
    return row.floor_divide(kBlock) * 10 + column.floor_divide(kBlock);
  };
  const auto mask = class_at(y, x).to(torch::kByte);
  for (int i = 0; i < 50; ++i) {
    Generator rng(0, 0, i);
    Generator same = rng;
    auto part = transform::random_resized_crop(picture, 32, 24, rng);
    auto classes = transform::random_resized_crop(
        mask, 32, 24, same, {.interpolation = Interpolation::nearest});
    ASSERT_TRUE(torch::isin(classes, mask).all().item<bool>()) << "draw " << i;
    part = transform::random_flip(part, rng);
    classes = transform::random_flip(classes, same);
    // A value that is blended is not that of the nearest pixel, so borders of blocks do not count.
    const auto is_inside = [](const at::Tensor& place) {
      const auto in_block = place.remainder(kBlock);
      return in_block.gt(kBorder).logical_and(in_block.lt(kBlock - kBorder));
    };
    const auto inside = is_inside(part[0]).logical_and(is_inside(part[1]));
    ASSERT_TRUE(inside.any().item<bool>()) << "draw " << i;
    const auto wrong = class_at(part[1], part[0]).ne(classes[0]).logical_and(inside);
    EXPECT_EQ(wrong.sum().item<int64_t>(), 0) << "draw " << i;
  }
}

TEST(Transforms, TheNearestPixelsAreTheSameWhereverColoursLie) {
  for (const auto& [height, width] : {std::pair{64, 48}, {9, 1}, {1, 9}, {7, 5}, {1, 1}}) {
    const auto image = bytes_picture(height, width);
    for (const auto& [rows, columns] : {std::pair{1, 1}, {7, 1}, {1, 5}, {64, 50}}) {
      const auto resized = transform::resize(image, rows, columns, Interpolation::nearest);
      EXPECT_TRUE(torch::isin(resized, image).all().item<bool>());
      EXPECT_TRUE(torch::equal(
          resized, transform::resize(interleaved(image), rows, columns, Interpolation::nearest)))
          << height << "x" << width << " to " << rows << "x" << columns;
    }
  }
  EXPECT_EQ(transform::resize_shorter(bytes_picture(40, 60), 20, Interpolation::nearest).sizes(),
            (std::vector<int64_t>{3, 20, 30}));
}

TEST(Transforms, FlipsAsOftenAsAsked) {
  const auto image = bytes_picture(3, 4);
  int flipped = 0;
  for (int i = 0; i < 400; ++i) {
    Generator rng(0, 0, i);
    flipped += torch::equal(transform::random_flip(image, rng, 0.25), image.flip(2)) ? 1 : 0;
  }
  EXPECT_NEAR(flipped, 100, 30);
}

TEST(Transforms, NormalizesABatchToTheBitsOfItsImages) {
  const auto bytes = torch::arange(2 * 3 * 256).to(torch::kByte).view({2, 3, 16, 16});
  const auto& mean = transform::kImageNetMean;
  const auto& deviation = transform::kImageNetDeviation;
  const auto expected = torch::stack({transform::normalize(bytes[0], mean, deviation),
                                      transform::normalize(bytes[1], mean, deviation)});
  transform::NormalizeOnDevice normalize(mean, deviation);
  EXPECT_TRUE(torch::equal(normalize(bytes), expected));
  EXPECT_TRUE(
      torch::equal(normalize(bytes.contiguous(torch::MemoryFormat::ChannelsLast)), expected));
  EXPECT_EQ(bytes.scalar_type(), torch::kByte);
  const auto floats = transform::to_float(bytes[0]).unsqueeze(0);
  EXPECT_TRUE(torch::equal(normalize(floats), expected.slice(0, 0, 1)));
  if (!torch::cuda::is_available())
    return;
  const torch::Device gpu(torch::kCUDA, 0);
  EXPECT_TRUE(normalize(bytes.to(gpu)).is_cuda());
  EXPECT_TRUE(torch::equal(normalize(bytes.to(gpu)).cpu(), expected));
}

TEST(Transforms, RefuseBatchesThatDoNotFit) {
  const auto images = torch::zeros({2, 3, 4, 4}, torch::kByte);
  transform::NormalizeOnDevice grey({0.5}, {0.5});
  EXPECT_THAT(message_of([&] { grey(images); }),
              HasSubstr("images [B, 1, height, width] uint8 or float32, got Byte [2, 3, 4, 4]"));
  EXPECT_THAT(message_of([&] { grey(torch::zeros({2, 1, 4, 4}, torch::kLong)); }),
              HasSubstr("got Long [2, 1, 4, 4]"));
  EXPECT_THAT(message_of([&] { grey({}); }), HasSubstr("an undefined tensor"));
  EXPECT_THAT(message_of([&] { transform::NormalizeOnDevice({0, 0}, {1}); }),
              HasSubstr("a mean and a deviation for each channel, got 2 and 1"));
  EXPECT_THAT(message_of([&] { transform::NormalizeOnDevice({0}, {0}); }),
              HasSubstr("deviations above 0"));
}

TEST(Transforms, NormalizesAsThreeOperations) {
  const auto image = bytes_picture(16, 17);
  const auto mean = torch::tensor(transform::kImageNetMean, torch::kFloat).view({3, 1, 1});
  const auto deviation =
      torch::tensor(transform::kImageNetDeviation, torch::kFloat).view({3, 1, 1});
  const auto expected = (image.to(torch::kFloat) / 255 - mean) / deviation;
  const auto ours = [](const at::Tensor& x) {
    return transform::normalize(x, transform::kImageNetMean, transform::kImageNetDeviation);
  };
  for (const auto& form : {image, interleaved(image), transform::to_float(image)}) {
    EXPECT_TRUE(torch::equal(ours(form), expected));
    EXPECT_TRUE(ours(form).is_contiguous());
  }
  EXPECT_TRUE(torch::equal(ours(transform::crop(interleaved(image), 1, 2, 5, 6)),
                           expected.narrow(1, 1, 5).narrow(2, 2, 6)));
}

TEST(Transforms, SaysWhatItExpected) {
  const auto image = bytes_picture(10, 12);
  Generator rng(0, 0, 0);
  EXPECT_THAT(message_of([&] { transform::crop(image, 8, 0, 4, 4); }),
              AllOf(HasSubstr("transform: crop"),
                    HasSubstr("4x4 from (8, 0)"),
                    HasSubstr("height 10 and width 12")));
  EXPECT_THAT(message_of([&] { transform::crop(image, 0, INT64_MAX, 1, 1); }),
              HasSubstr("lie within"));
  EXPECT_THAT(message_of([&] { transform::center_crop(image, 20, 4); }),
              HasSubstr("at least 20x4"));
  EXPECT_THAT(message_of([&] { transform::random_crop(image, 15, 4, rng, 2); }),
              HasSubstr("15x4 with padding 2"));
  EXPECT_THAT(message_of([&] { transform::resize(image[0], 4, 4); }),
              HasSubstr("got Byte [10, 12] on cpu"));
  EXPECT_THAT(message_of([&] { transform::resize(image, 0, 4); }), HasSubstr("at least 1"));
  EXPECT_THAT(message_of([&] { transform::flip(image.to(torch::kLong)); }), HasSubstr("Long"));
  EXPECT_THAT(message_of([&] { transform::flip({}); }), HasSubstr("undefined"));
  EXPECT_THAT(message_of([&] { transform::normalize(image, {0.5}, {0.5}); }),
              HasSubstr("each of 3 channels"));
  EXPECT_THAT(message_of([&] { transform::normalize(image, {0, 0, 0}, {1, 0, 1}); }),
              HasSubstr("above 0"));
}

TEST(MixUp, MixesEachWithTheOneBefore) {
  const auto images = torch::rand({4, 3, 8, 8});
  const auto labels = torch::tensor({0, 1, 2, 1}, torch::kLong);
  double lambdas = 0;
  for (int i = 0; i < 200; ++i) {
    Generator rng(0, 0, i);
    const auto mixed = transform::mix_up(images, labels, 3, 0.8, rng);
    const double lambda = mixed.targets[1][1].item<double>();
    lambdas += lambda;
    ASSERT_TRUE(torch::allclose(
        mixed.images, images * lambda + images.roll(1, 0) * (1 - lambda), 1e-4, 1e-5));
    ASSERT_TRUE(torch::allclose(mixed.targets.sum(1), torch::ones({4})));
  }
  EXPECT_NEAR(lambdas / 200, 0.5, 0.08);
}

TEST(MixUp, CutsRectanglesOutOfTheOneBefore) {
  const auto images = torch::arange(4).view({4, 1, 1, 1}).expand({4, 3, 16, 12}).to(torch::kFloat);
  const auto labels = torch::arange(4);
  for (int i = 0; i < 100; ++i) {
    Generator rng(0, 0, i);
    const auto mixed = transform::cut_mix(images, labels, 4, 1.0, rng);
    const auto foreign = (mixed.images != images).to(torch::kFloat).mean({1, 2, 3});
    for (int64_t b = 0; b < 4; ++b) {
      ASSERT_NEAR(mixed.targets[b][(b + 3) % 4].item<double>(), foreign[b].item<double>(), 1e-5);
      ASSERT_NEAR(mixed.targets[b].sum().item<double>(), 1, 1e-5);
    }
  }
}

TEST(MixUp, SaysWhatItExpected) {
  const auto images = torch::rand({2, 3, 4, 4});
  const auto labels = torch::tensor({0, 5}, torch::kLong);
  Generator rng(0, 0, 0);
  EXPECT_THAT(message_of([&] { transform::mix_up(images, labels, 5, 1, rng); }),
              HasSubstr("labels from 0 to 4, got 5"));
  EXPECT_THAT(message_of([&] { transform::mix_up(images, labels, 6, 0, rng); }),
              HasSubstr("alpha above 0"));
  EXPECT_THAT(message_of([&] { transform::cut_mix(images[0], labels, 6, 1, rng); }),
              HasSubstr("Float [3, 4, 4]"));
  EXPECT_THAT(message_of([&] { transform::cut_mix(images, labels[0], 6, 1, rng); }),
              HasSubstr("int64 labels [2]"));
}

}  // namespace
}  // namespace muster
