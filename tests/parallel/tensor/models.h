// Numbers and layers that all ranks make alike, for the tests of what divides a model. Ranks are
// threads of one process there, so that nothing here uses torch's default generator.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster::testing {

struct TensorCase {
  const char* backend;
  int ranks;
};

inline std::string name_of_case(const TensorCase& value) {
  return value.backend + std::to_string(value.ranks);
}

inline at::Tensor tensor_numbers(at::IntArrayRef sizes,
                                 uint64_t seed,
                                 at::ScalarType type = at::kDouble) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(type);
}

inline torch::nn::Linear tensor_linear(int64_t inputs,
                                       int64_t outputs,
                                       uint64_t seed,
                                       at::ScalarType type = at::kDouble) {
  torch::nn::Linear layer(inputs, outputs);
  layer->to(type);
  const torch::NoGradGuard no_grad;
  layer->weight.copy_(tensor_numbers({outputs, inputs}, seed, type) /
                      std::sqrt(static_cast<double>(inputs)));
  layer->bias.copy_(tensor_numbers({outputs}, seed + 1, type) / 10);
  return layer;
}

inline double tensor_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// What this thread has allocated by torch since, at most, and the largest piece of it.
class MemoryMeter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    now_ += bytes;
    most = std::max(most, now_);
    largest = std::max(largest, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t most = 0;
  int64_t largest = 0;

 private:
  int64_t now_ = 0;
};

inline int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

inline double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace muster::testing
