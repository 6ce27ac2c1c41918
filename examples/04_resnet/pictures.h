// The example's data: pictures of 32×32 in CIFAR-10's files, cut out a little elsewhere in every
// epoch, and enlarged where a model was trained on larger ones. Where there are none, the
// handwritten digits of data/, enlarged and in the same format.
#pragma once

#include <muster/base/error.h>
#include <muster/data/dataset.h>
#include <muster/data/digits.h>
#include <muster/data/transforms.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

struct Picture {
  torch::Tensor pixels;  // [3, side, side] float32
  torch::Tensor label;
};

// What a model gets to see: pictures of this side, of whose colours the mean was subtracted, and
// which were then divided by `deviation`.
struct Seen {
  int64_t side = 32;
  std::vector<double> mean = {0.5, 0.5, 0.5};
  std::vector<double> deviation = {0.25, 0.25, 0.25};
};

class Pictures : public muster::Dataset<Picture> {
 public:
  // `mirror`: left becomes right in half of them, which is no good for digits.
  Pictures(muster::TensorDataset bytes, const Seen& seen, bool augment, bool mirror)
      : bytes_(std::move(bytes)), seen_(seen), augment_(augment), mirror_(mirror) {}

  int64_t size() const override { return bytes_.size(); }
  Picture get(int64_t index, muster::Generator& rng) const override {
    namespace transform = muster::transform;
    auto pixels = bytes_.features()[index];
    if (augment_)
      pixels = transform::random_crop(pixels, 32, 32, rng, /*padding=*/4);
    if (augment_ && mirror_)
      pixels = transform::random_flip(pixels, rng);
    if (seen_.side != pixels.size(-1))
      pixels = transform::resize(pixels, seen_.side, seen_.side);
    return {transform::normalize(pixels, seen_.mean, seen_.deviation), bytes_.labels()[index]};
  }

 private:
  muster::TensorDataset bytes_;
  Seen seen_;
  bool augment_;
  bool mirror_;
};

// One file of records: the label, and a plane of 32×32 bytes of each colour.
inline void write_cifar(const std::string& path, const muster::TensorDataset& digits) {
  const auto large =
      torch::nn::functional::interpolate(digits.features(),
                                         torch::nn::functional::InterpolateFuncOptions()
                                             .size(std::vector<int64_t>{32, 32})
                                             .mode(torch::kBilinear)
                                             .align_corners(false));
  const auto planes = (large * 255).to(torch::kByte).expand({-1, 3, -1, -1}).flatten(1);
  const auto records =
      torch::cat({digits.labels().to(torch::kByte).unsqueeze(1), planes}, 1).contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(records.const_data_ptr<uint8_t>()), records.numel());
  if (!file.flush())
    throw muster::Error(muster::ErrorCode::io, "resnet: cannot write '" + path + "'");
}

// The folder of the digits in CIFAR-10's format, made where it is not there yet.
inline std::string digits_as_cifar(const std::string& digits, const std::string& folder) {
  if (std::filesystem::exists(folder + "/test_batch.bin"))
    return folder;
  const auto data = muster::read_digits(digits);
  std::filesystem::create_directories(folder);
  write_cifar(folder + "/data_batch_1.bin", data.train);
  write_cifar(folder + "/test_batch.bin", data.test);
  return folder;
}
