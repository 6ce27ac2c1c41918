// Safetensors files are read through TensorSource, which also joins what several ranks wrote.
#include "muster/checkpoint/weight_source.h"

#include <ATen/ops/empty.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/tensor_source.h"
#include "muster/checkpoint/files/weight_files.h"
#include "muster/checkpoint/safetensors.h"

namespace muster {

namespace {

class SafetensorsWeights : public WeightSource {
 public:
  explicit SafetensorsWeights(const std::string& path) : path_(path), source_(weight_files(path)) {
    if (const auto holes = source_.incomplete(); !holes.empty())
      throw Error(ErrorCode::invalid_argument,
                  cat("load_weights: expected all of '",
                      holes[0],
                      "' in '",
                      path,
                      "', got some of it; a rank's file is missing"));
    for (const auto& [name, tensor] : source_.tensors())
      entries_.emplace(name, tensor.kind);
  }

  const TensorEntries& tensors() const override { return entries_; }

  at::Tensor read(const std::string& name) const override {
    const TensorEntry& kind = entries_.at(name);
    const at::Tensor values = at::empty(kind.shape, scalar_type_of(kind));
    source_.read(name, all_elements(kind.shape), values.mutable_data_ptr());
    check_bools(path_, name, values);
    return values;
  }

 private:
  std::string path_;
  TensorSource source_;
  TensorEntries entries_;
};

}  // namespace

std::unique_ptr<WeightSource> open_weights(const std::string& path) {
  return std::make_unique<SafetensorsWeights>(path);
}

}  // namespace muster
