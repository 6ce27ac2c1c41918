// A data set that lies in memory: what loader.h iterates over and the readers (digits.h, mnist.h) give.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace muster {

class TensorDataset {
 public:
  // Shapes: features [N, ...], labels [N, ...], on the same device.
  // Throws: invalid_argument when they disagree in N or device, or one is undefined or has no dimension.
  TensorDataset(at::Tensor features, at::Tensor labels);

  const at::Tensor& features() const { return features_; }
  const at::Tensor& labels() const { return labels_; }
  int64_t size() const { return features_.size(0); }

 private:
  at::Tensor features_;
  at::Tensor labels_;
};

struct DatasetSplit {
  TensorDataset train;
  TensorDataset test;
};

}  // namespace muster
