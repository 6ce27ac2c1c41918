// Transforms beside torchvision's numbers, which torchvision_numbers.py has written into
// torchvision_numbers.txt, and the same transforms on batches.
#include <ATen/Version.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "muster/data/affine.h"
#include "muster/data/auto_augment.h"
#include "muster/data/blur.h"
#include "muster/data/color.h"
#include "muster/data/erasing.h"
#include "muster/data/transforms.h"
#include "tests/data/some_pictures.h"

namespace muster {
namespace {

using Arguments = std::vector<double>;

int64_t whole(double value) {
  return static_cast<int64_t>(value);
}

// Interpolation, whether there is a center, its x and y, and the fill.
transform::AffineOptions affine_options(const Arguments& a, int64_t first) {
  transform::AffineOptions options;
  if (a.at(first) == 1)
    options.interpolation = transform::Interpolation::bilinear;
  if (a.at(first + 1) == 1)
    options.center = {a.at(first + 2), a.at(first + 3)};
  options.fill.assign(a.begin() + first + 4, a.end());
  return options;
}

at::Tensor erased(const at::Tensor& image, const Arguments& a) {
  return transform::erase(image, whole(a[0]), whole(a[1]), whole(a[2]), whole(a[3]), {a[4]});
}

at::Tensor moved(const at::Tensor& image, const Arguments& a) {
  return transform::affine(image, a[0], {a[1], a[2]}, a[3], {a[4], a[5]}, affine_options(a, 6));
}

// With bounds that leave one part alone, whatever is drawn.
at::Tensor cropped(const at::Tensor& images,
                   const Arguments& a,
                   transform::Interpolation interpolation) {
  const transform::ResizedCropOptions bounds{
      .scale = {a[2], a[3]}, .ratio = {a[4], a[5]}, .interpolation = interpolation};
  if (images.dim() == 4) {
    Generators rngs(0, 0, std::vector<int64_t>(images.size(0)));
    return transform::random_resized_crop(images, whole(a[0]), whole(a[1]), rngs, bounds);
  }
  Generator rng(0, 0, 0);
  return transform::random_resized_crop(images, whole(a[0]), whole(a[1]), rng, bounds);
}

using Call = std::function<at::Tensor(const at::Tensor&, const Arguments&)>;

// The functions of the file by their names.
const std::map<std::string, Call>& calls() {
  namespace t = transform;
  static const std::map<std::string, Call> all{
      {"adjust_brightness", [](auto& x, auto& a) { return t::adjust_brightness(x, a[0]); }},
      {"adjust_contrast", [](auto& x, auto& a) { return t::adjust_contrast(x, a[0]); }},
      {"adjust_saturation", [](auto& x, auto& a) { return t::adjust_saturation(x, a[0]); }},
      {"adjust_hue", [](auto& x, auto& a) { return t::adjust_hue(x, a[0]); }},
      {"adjust_sharpness", [](auto& x, auto& a) { return t::adjust_sharpness(x, a[0]); }},
      {"rgb_to_grayscale", [](auto& x, auto& a) { return t::rgb_to_grayscale(x, whole(a[0])); }},
      {"invert", [](auto& x, auto&) { return t::invert(x); }},
      {"posterize", [](auto& x, auto& a) { return t::posterize(x, whole(a[0])); }},
      {"solarize", [](auto& x, auto& a) { return t::solarize(x, a[0]); }},
      {"autocontrast", [](auto& x, auto&) { return t::autocontrast(x); }},
      {"equalize", [](auto& x, auto&) { return t::equalize(x); }},
      {"gaussian_blur",
       [](auto& x, auto& a) {
         return t::gaussian_blur(x, {whole(a[0]), whole(a[1])}, {a[2], a[3]});
       }},
      {"erase", erased},
      {"rotate", [](auto& x, auto& a) { return t::rotate(x, a[0], affine_options(a, 1)); }},
      {"random_resized_crop",
       [](auto& x, auto& a) { return cropped(x, a, t::Interpolation::bilinear); }},
      {"random_resized_crop_nearest",
       [](auto& x, auto& a) { return cropped(x, a, t::Interpolation::nearest); }},
      {"affine", moved}};
  return all;
}

// As torchvision_numbers.py has it.
double number_of(const at::Tensor& values) {
  const auto weights = torch::arange(values.numel()) * 7919 % 1009 + 1;
  return (values.flatten().to(torch::kDouble) * weights).sum().item<double>();
}

// A line of the file.
struct Row {
  std::string text, name, kind, type;
  int64_t height = 0, width = 0;
  Arguments arguments;
  double expected = 0;

  at::Tensor picture() const {
    const auto bytes = test::some_bytes(kind, height, width);
    return type == "bytes" ? bytes : bytes.to(torch::kFloat) / 255;
  }
  at::Tensor call(const at::Tensor& images) const { return calls().at(name)(images, arguments); }
};

Row row_of(const std::string& line) {
  Row row;
  row.text = line;
  std::istringstream in(line);
  std::string word;
  in >> row.name >> row.kind >> row.height >> row.width >> row.type >> word;
  while (in >> word && word != "=")
    row.arguments.push_back(std::stod(word));
  in >> row.expected;
  return row;
}

std::vector<Row> all_rows() {
  std::ifstream file(MUSTER_SOURCE_DIR "/tests/data/torchvision_numbers.txt");
  std::vector<Row> all;
  for (std::string line; std::getline(file, line);)
    if (line.front() != '#')
      all.push_back(row_of(line));
  return all;
}

std::vector<Row> rows() {
  auto all = all_rows();
  std::erase_if(all, [](const Row& row) { return !calls().contains(row.name); });
  return all;
}

// What a policy's changes make of a picture.
std::vector<Row> policy_rows() {
  auto all = all_rows();
  std::erase_if(all, [](const Row& row) { return calls().contains(row.name); });
  return all;
}

// Bytes to the last; floats to what the order of a sum changes. So does a blurred value that lies
// on half a byte.
double most_apart(const Row& row) {
  constexpr double kLargestWeight = 1009;
  if (row.type == "floats")
    return 1e-6 * std::max(std::abs(row.expected), 1.0);
  return row.name == "gaussian_blur" ? kLargestWeight : 0;
}

// LibTorch rounds otherwise where it has no vectors that fuse products with sums.
bool is_their_processor() {
  return at::get_cpu_capability().find("AVX") != std::string::npos;
}

TEST(Torchvision, HasTheSameNumbers) {
  if (!is_their_processor())
    GTEST_SKIP() << "the numbers are of a processor with AVX2";
  const auto all = rows();
  ASSERT_GT(all.size(), 1000U);
  for (const Row& row : all)
    EXPECT_NEAR(number_of(row.call(row.picture())), row.expected, most_apart(row)) << row.text;
}

// As many pictures as there are, each another one.
at::Tensor batch_of(const at::Tensor& picture) {
  return torch::stack({picture, picture.flip({-1}), picture.flip({-2}), picture.roll(5, -1)});
}

at::Tensor made_one_by_one(const Row& row, const at::Tensor& batch) {
  std::vector<at::Tensor> changed;
  for (const auto& image : batch.unbind())
    changed.push_back(row.call(image));
  return torch::stack(changed);
}

TEST(Torchvision, ChangesABatchAsItsImages) {
  const auto all = rows();
  ASSERT_GT(all.size(), 1000U);
  for (const Row& row : all) {
    if (row.kind != "flat")
      continue;
    const auto batch = batch_of(row.picture());
    const auto expected = made_one_by_one(row, batch);
    EXPECT_TRUE(torch::equal(row.call(batch), expected)) << row.text;
    const auto colours_last = batch.contiguous(torch::MemoryFormat::ChannelsLast);
    EXPECT_TRUE(torch::equal(row.call(colours_last), expected)) << row.text;
    EXPECT_TRUE(torch::equal(batch, batch_of(row.picture())))
        << row.text << " has changed its input";
  }
}

// On a device: a result of arithmetic may be cut to the byte below, and a place that lies between
// two pixels may be either. The stand-in for a GPU computes as the CPU, so that only the way of its
// batches is another one.
TEST(ImagesOnAGpu, ChangeAsOnTheCpu) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "no GPU";
  const torch::Device gpu(torch::kCUDA, 0);
  const auto all = rows();
  ASSERT_GT(all.size(), 1000U);
  for (const Row& row : all) {
    if (row.kind != "flat")
      continue;
    const auto batch = batch_of(row.picture());
    const auto expected = row.call(batch);
    const auto ours = row.call(batch.to(gpu));
    ASSERT_TRUE(ours.is_cuda());
    const auto apart = (ours.cpu().to(torch::kFloat) - expected.to(torch::kFloat)).abs();
    const bool is_moved = row.name == "rotate" || row.name == "affine";
    const double tiny = row.type == "bytes" ? 1 : 1e-5;
    const double others = apart.gt(tiny).to(torch::kFloat).mean().item<double>();
    EXPECT_LE(others, is_moved ? 0.02 : 0) << row.text;
    EXPECT_TRUE(
        torch::equal(row.call(batch.slice(0, 1, 2).to(gpu)).cpu(), ours.slice(0, 1, 2).cpu()))
        << row.text << " depends on the batch";
  }
}

// The policies draw what torchvision's can, and all but a few of it at least `often`.
using Augment = std::function<at::Tensor(const at::Tensor&, Generator&)>;

void expect_what_torchvision_makes(const std::string& policy,
                                   int draws,
                                   int often,
                                   const Augment& augment) {
  if (!is_their_processor())
    GTEST_SKIP() << "the numbers are of a processor with AVX2";
  std::map<double, int> seen;
  for (const Row& row : policy_rows())
    if (row.name == policy)
      seen.emplace(row.expected, 0);
  ASSERT_GT(seen.size(), 15U);
  const auto picture = test::some_bytes("rgb", 24, 20);
  for (int i = 0; i < draws; ++i) {
    Generator rng(0, 0, i);
    const auto found = seen.find(number_of(augment(picture, rng)));
    ASSERT_NE(found, seen.end()) << policy << ", draw " << i;
    ++found->second;
  }
  const auto rare =
      std::ranges::count_if(seen, [often](const auto& made) { return made.second < often; });
  EXPECT_LE(rare, std::ssize(seen) / 50);
}

TEST(Torchvision, RandAugmentMakesTheSame) {
  expect_what_torchvision_makes("rand_augment", 600, 6, [](auto& image, auto& rng) {
    return transform::rand_augment(image, rng, {.num_ops = 1});
  });
}

TEST(Torchvision, TrivialAugmentWideMakesTheSame) {
  expect_what_torchvision_makes("trivial_augment_wide", 6000, 1, [](auto& image, auto& rng) {
    return transform::trivial_augment_wide(image, rng);
  });
}

// Every picture that torchvision's policy can make is made as often as there, and no other. The
// bound is five deviations of a count.
void expect_torchvisions_odds(const std::string& name, transform::AutoAugmentPolicy policy) {
  if (!is_their_processor())
    GTEST_SKIP() << "the numbers are of a processor with AVX2";
  constexpr int kDraws = 4000;
  std::map<double, double> expected;
  std::map<double, int> made;
  for (const Row& row : policy_rows())
    if (row.name == "auto_augment_" + name)
      expected.emplace(row.expected, kDraws * row.arguments.at(0));
  ASSERT_GT(expected.size(), 50U);
  const auto picture = test::some_bytes("rgb", 24, 20);
  for (int i = 0; i < kDraws; ++i) {
    Generator rng(0, 0, i);
    const double number = number_of(transform::auto_augment(picture, rng, {.policy = policy}));
    ASSERT_TRUE(expected.contains(number)) << name << ", draw " << i;
    ++made[number];
  }
  for (const auto& [number, count] : expected)
    EXPECT_NEAR(made[number], count, 5 * std::sqrt(count) + 3) << name << ", " << number;
}

TEST(Torchvision, AutoAugmentMakesTheSameAsOften) {
  expect_torchvisions_odds("imagenet", transform::AutoAugmentPolicy::imagenet);
  expect_torchvisions_odds("cifar10", transform::AutoAugmentPolicy::cifar10);
  expect_torchvisions_odds("svhn", transform::AutoAugmentPolicy::svhn);
}

}  // namespace
}  // namespace muster
