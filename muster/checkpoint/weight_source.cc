// Safetensors files are read through TensorSource, which also joins what several ranks wrote.
#include "muster/checkpoint/weight_source.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/files/path_facts.h"
#include "muster/checkpoint/files/tensor_source.h"
#include "muster/checkpoint/files/view.h"
#include "muster/checkpoint/files/weight_files.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/torch_file.h"

namespace muster {

namespace {

constexpr auto kTorchModelFile = "pytorch_model.bin";  // as hubs have it

class SafetensorsWeights : public WeightSource {
 public:
  SafetensorsWeights(const std::string& path, TensorSource source)
      : path_(path), source_(std::move(source)) {
    source_.require_whole("load_weights", path);
    for (const auto& [name, tensor] : source_.tensors())
      entries_.emplace(name, tensor.kind);
  }

  const TensorEntries& tensors() const override { return entries_; }

  Tensor read(const std::string& name) const override {
    const TensorEntry& kind = entries_.at(name);
    const Tensor values = at::empty(kind.shape, scalar_type_of(kind));
    source_.read(name, all_elements(kind.shape), values.mutable_data_ptr());
    check_bools(path_, name, values);
    return values;
  }

 private:
  std::string path_;
  TensorSource source_;
  TensorEntries entries_;
};

// What torch.save has written there: the file itself, or the model of a folder that has no
// safetensors. Empty: nothing.
std::string torch_file_of(const std::string& path) {
  if (!is_folder(path))
    return exists_at(path) && is_torch_file(path) ? path : "";
  const auto file = cat(path, "/", kTorchModelFile);
  const bool is_plain = !exists_at(cat(path, "/", kManifestFile)) && !has_plain_weights(path);
  return is_plain && exists_at(file) ? file : "";
}

}  // namespace

WeightSourcePtr open_weights(const std::string& path, const std::string& part) {
  if (!part.empty())
    return std::make_unique<SafetensorsWeights>(path, part_set(view_checkpoint(path), part).open());
  if (const auto file = torch_file_of(path); !file.empty())
    return open_torch_file(file);
  return std::make_unique<SafetensorsWeights>(path, TensorSource(weight_files(path)));
}

}  // namespace muster
