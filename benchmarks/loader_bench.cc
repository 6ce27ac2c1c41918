// How many samples a second loaders give: muster's, and LibTorch's own (torch::data). Started by
// loader_bench.py, which has PyTorch's DataLoader take its turns between.
//
//   loader_bench tokens FILE | pictures FOLDER | shards FOLDER | collate,
//                each with --workers, --batch-size, --seconds
//
// pictures --changes samples | batches also has ColorJitter and RandAugment change the pictures: in
// the workers, one by one, or as batches in the loop (with --gpu there).
//
// It prints samples a second, the part of the time that was waited for workers, microseconds of
// processor time for a sample, and page faults for a batch.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <vector>

#include <sys/resource.h>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/data/auto_augment.h"
#include "muster/data/batch_places.h"
#include "muster/data/color.h"
#include "muster/data/loader.h"
#include "muster/data/readers/images.h"
#include "muster/data/readers/tokens.h"
#include "muster/data/readers/web_shards.h"
#include "muster/data/stream_loader.h"
#include "muster/data/transforms.h"

namespace {

constexpr int64_t kContext = 1024;
constexpr int64_t kSide = 224;

struct Options {
  std::string what;
  std::string path;
  std::string loader = "muster";
  bool plain = false;  // pictures by LibTorch's operations
  bool copied = false;
  int workers = 2;
  int64_t batch_size = 32;
  double seconds = 3;
  double step_ms = 0;  // what a training step takes, which the stall is a share of
  std::string changes = "none";
  bool gpu = false;
};

template <class Generators>
at::Tensor changed(const at::Tensor& images, Generators& rngs) {
  namespace transform = muster::transform;
  const auto jittered = transform::color_jitter(
      images, rngs, {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1});
  return transform::rand_augment(jittered, rngs);
}

at::Tensor cropped(const muster::EncodedImage& image, muster::Generator& rng) {
  namespace transform = muster::transform;
  return transform::random_flip(transform::random_resized_crop(image, kSide, kSide, rng), rng);
}

at::Tensor cropped_and_changed(const muster::EncodedImage& image, muster::Generator& rng) {
  namespace transform = muster::transform;
  const auto part = changed(cropped(image, rng), rng);
  return transform::normalize(part, transform::kImageNetMean, transform::kImageNetDeviation);
}

at::Tensor augmented(const muster::EncodedImage& image, muster::Generator& rng) {
  namespace transform = muster::transform;
  return transform::normalize(
      cropped(image, rng), transform::kImageNetMean, transform::kImageNetDeviation);
}

// As people write it with LibTorch alone: the whole picture is decoded, then cut (the crop drawn as
// torchvision draws it), resized, flipped and normalised by an operation each.
at::Tensor plainly_augmented(const at::Tensor& image, muster::Generator& rng) {
  int64_t top = 0;
  int64_t left = 0;
  int64_t height = image.size(1);
  int64_t width = image.size(2);
  for (int i = 0; i < 10; ++i) {
    const double area = static_cast<double>(image.size(1) * image.size(2)) * rng.uniform(0.08, 1);
    const double ratio = std::exp(rng.uniform(std::log(3.0 / 4), std::log(4.0 / 3)));
    const auto w = static_cast<int64_t>(std::nearbyint(std::sqrt(area * ratio)));
    const auto h = static_cast<int64_t>(std::nearbyint(std::sqrt(area / ratio)));
    if (w < 1 || h < 1 || w > image.size(2) || h > image.size(1))
      continue;
    top = rng.integer(image.size(1) - h + 1);
    left = rng.integer(image.size(2) - w + 1);
    height = h;
    width = w;
    break;
  }
  namespace F = torch::nn::functional;
  static const auto mean = torch::tensor({0.485F, 0.456F, 0.406F}).view({3, 1, 1});
  static const auto deviation = torch::tensor({0.229F, 0.224F, 0.225F}).view({3, 1, 1});
  const auto part = image.narrow(1, top, height).narrow(2, left, width).unsqueeze(0);
  auto pixels = F::interpolate(part,
                               F::InterpolateFuncOptions()
                                   .size(std::vector<int64_t>{kSide, kSide})
                                   .mode(torch::kBilinear)
                                   .align_corners(false)
                                   .antialias(true))
                    .squeeze(0);
  if (rng.chance(0.5))
    pixels = pixels.flip(2);
  return pixels.to(torch::kFloat).div_(255).sub_(mean).div_(deviation);
}

// Pictures that cost nothing to make: of each page of their memory one byte is written. Or, if they
// are to be copied, tensors that are there already.
class Blanks : public muster::Dataset<muster::ImageExample> {
 public:
  Blanks(bool copied, bool in_batch) : in_batch_(in_batch) {
    constexpr int kMade = 48;
    for (int i = 0; copied && i < kMade; ++i)
      made_.push_back(torch::full({3, kSide, kSide}, i, torch::kFloat));
  }
  int64_t size() const override { return 1 << 16; }
  muster::ImageExample get(int64_t index, muster::Generator& /*rng*/) const override {
    const auto label = torch::scalar_tensor(index, torch::kLong);
    if (!made_.empty())
      return {made_[static_cast<size_t>(index) % made_.size()], label};
    auto pixels = in_batch_ ? muster::empty_in_batch({3, kSide, kSide}, torch::kFloat)
                            : torch::empty({3, kSide, kSide});
    constexpr int64_t kPage = 4096 / sizeof(float);
    auto* const values = pixels.mutable_data_ptr<float>();
    for (int64_t i = 0; i < pixels.numel(); i += kPage)
      values[i] = 1;
    return {pixels, label};
  }

 private:
  bool in_batch_;
  std::vector<at::Tensor> made_;
};

// Of this process.
struct Used {
  static Used now() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return {.seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime),
            .faults = usage.ru_minflt};
  }
  double seconds = 0;
  int64_t faults = 0;
};

// What batches are counted in, once they are warm.
struct Count {
  void begin() {
    start = muster::Clock::now();
    before = Used::now();
  }
  bool is_over(const Options& options) const {
    return muster::seconds_since(start) > options.seconds;
  }
  void print(const Options& options, double stalled) const {
    const double seconds = muster::seconds_since(start);
    const Used after = Used::now();
    std::printf("%.1f %.4f %.1f %.1f\n",
                static_cast<double>(samples) / seconds,
                options.step_ms > 0 ? stalled / seconds : 0,
                1e6 * (after.seconds - before.seconds) / static_cast<double>(samples),
                static_cast<double>((after.faults - before.faults) * options.batch_size) /
                    static_cast<double>(samples));
  }
  muster::Clock::time_point start = muster::Clock::now();
  Used before = {};
  int64_t samples = 0;
};

void pass_time(double ms) {
  const auto begin = muster::Clock::now();
  while (muster::seconds_since(begin) * 1e3 < ms) {
    timespec pause{0, 100'000};
    ::nanosleep(&pause, nullptr);
  }
}

// What the loop does with its batches.
class BatchChanges {
 public:
  explicit BatchChanges(const Options& options) : options_(options) {}

  template <class Batch>
  void take(const Batch& batch) {
    if constexpr (requires { batch.image; }) {
      if (options_.changes != "batches")
        return;
      muster::Generators rngs(0, ++step_, batch.sample_indices);
      const auto images = normalize_(changed(batch.image, rngs));
      if (options_.gpu)
        images.sum().template item<float>();  // waits for it
    }
  }

 private:
  const Options& options_;
  int64_t step_ = 0;
  muster::transform::NormalizeOnDevice normalize_{muster::transform::kImageNetMean,
                                                  muster::transform::kImageNetDeviation};
};

// The first batches, which wait for the workers to start, are not counted.
constexpr int kWarm = 4;

template <class Loader>
void time_muster(const Options& options, Loader& loader) {
  BatchChanges changes(options);
  int64_t batches = 0;
  double stalled = 0;
  Count count;
  for (const auto& batch : loader.steps(INT64_MAX)) {
    changes.take(batch);
    if (++batches == kWarm) {
      count.begin();
      stalled = loader.stats().seconds_stalled;
    } else if (batches > kWarm) {
      count.samples += batch.size();
      if (count.is_over(options))
        break;
    }
    if (options.step_ms > 0)
      pass_time(options.step_ms);
  }
  count.print(options, loader.stats().seconds_stalled - stalled);
}

template <class D>
void run_muster(const Options& options, D dataset) {
  const int64_t size = dataset.size();
  muster::DistributedSampler sampler(muster::pseudo_shuffled(size));
  muster::DataLoader loader(std::move(dataset),
                            sampler,
                            {.batch_size = options.batch_size,
                             .drop_last = true,
                             .device = options.gpu ? c10::kCUDA : c10::kCPU,
                             .workers = options.workers,
                             .check_weight = false});
  time_muster(options, loader);
}

// LibTorch's loader over the same data set and the same transforms.
template <class D>
struct TorchSet : torch::data::datasets::Dataset<TorchSet<D>> {
  explicit TorchSet(std::shared_ptr<const D> of) : data(std::move(of)) {}
  torch::data::Example<> get(size_t index) override {
    muster::Generator rng(0, 0, static_cast<int64_t>(index));
    const auto example = data->get(static_cast<int64_t>(index), rng);
    if constexpr (requires { example.tokens; }) {
      return {example.tokens, example.targets};
    } else {
      return {example.image, example.label};
    }
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(data->size()); }
  std::shared_ptr<const D> data;
};

template <class D>
void run_torch(const Options& options, D dataset) {
  at::set_num_threads(1);  // of every worker; else each has a team of its own
  auto mapped = TorchSet<D>(std::make_shared<const D>(std::move(dataset)))
                    .map(torch::data::transforms::Stack<>());
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      std::move(mapped),
      torch::data::DataLoaderOptions()
          .batch_size(static_cast<size_t>(options.batch_size))
          .workers(static_cast<size_t>(options.workers))
          .drop_last(true));
  int64_t batches = 0;
  Count count;
  for (bool over = false; !over;) {
    for (auto& batch : *loader) {
      if (++batches == kWarm)
        count.begin();
      if (batches > kWarm)
        count.samples += batch.data.size(0);
      over = over || (batches > kWarm && count.is_over(options));
      // An epoch cannot be left early: the loader could not be used, nor ended, before its end.
      if (over)
        break;
    }
  }
  count.print(options, 0);
  std::fflush(stdout);
  std::_Exit(0);
}

template <class D>
void run_one(const Options& options, D dataset) {
  if (options.loader == "torch")
    return run_torch(options, std::move(dataset));
  run_muster(options, std::move(dataset));
}

void run_shards(const Options& options) {
  const muster::WebShards shards(
      muster::shards_of(options.path),
      [&](const muster::WebSample& sample, muster::Generator& rng) {
        const muster::EncodedImage image(sample.file("jpg"), sample.place());
        return muster::ImageExample{
            augmented(image, rng),
            torch::scalar_tensor(std::stoll(sample.file("cls")), torch::kLong)};
      },
      {.shuffle_buffer = 100});
  muster::StreamLoader loader(shards,
                              {.batch_size = options.batch_size,
                               .drop_last = true,
                               .workers = options.workers,
                               .check_weight = false});
  time_muster(options, loader);
}

muster::ImageTransform transform_of(const Options& options) {
  if (options.changes == "samples")
    return cropped_and_changed;
  if (options.changes == "batches")
    return cropped;
  return augmented;
}

void run_bench(const Options& options) {
  if (options.what == "tokens")
    return run_one(
        options,
        muster::TokenFile(options.path, muster::TokenType::uint16, kContext, {.random = true}));
  if (options.what == "pictures" && options.plain)
    return run_one(options, muster::ImageFolder(options.path, {.transform = plainly_augmented}));
  if (options.what == "pictures")
    return run_one(options,
                   muster::ImageFolder(options.path, {.transform = transform_of(options)}));
  if (options.what == "collate")
    return run_one(options, Blanks(options.copied, options.loader == "muster"));
  run_shards(options);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Samples a second, and the share of the time that was waited for workers.");
  app.add_option("what", options.what)
      ->required()
      ->check(CLI::IsMember({"tokens", "pictures", "shards", "collate"}));
  app.add_option("path", options.path);
  app.add_option("--loader", options.loader)->check(CLI::IsMember({"muster", "torch"}));
  app.add_option("--changes", options.changes, "of pictures, by muster")
      ->check(CLI::IsMember({"none", "samples", "batches"}));
  app.add_flag("--gpu", options.gpu, "batches go to a GPU");
  app.add_flag("--plain", options.plain, "pictures: LibTorch's operations, not muster's");
  app.add_flag("--copied", options.copied, "collate: pictures that are there already");
  app.add_option("--workers", options.workers);
  app.add_option("--batch-size", options.batch_size);
  app.add_option("--seconds", options.seconds);
  app.add_option("--step-ms", options.step_ms, "what a training step takes, asleep");
  CLI11_PARSE(app, argc, argv);
  try {
    run_bench(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loader_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
