#include "muster/checkpoint/load_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <map>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/tensor_source.h"
#include "muster/checkpoint/files/weight_files.h"
#include "muster/checkpoint/model_state.h"

namespace muster {

namespace {

// A tensor of the file, as all ranks are told of it.
struct FoundWeight {
  std::string from;  // its name in the file
  TensorEntry kind;
};

[[noreturn]] void refuse_weights(const std::string& expected, const std::string& path, const std::string& got,
                                 const std::string& next) {
  throw Error(ErrorCode::invalid_argument,
              cat("load_weights: expected ", expected, " in '", path, "', got ", got, "; ", next));
}

// Of the whole tensors, a head as a safetensors file would have it.
std::string head_of(const TensorSource& source) {
  SafetensorsHeader header;
  uint64_t at = 0;
  for (const auto& [name, tensor] : source.tensors()) {
    TensorEntry entry = tensor.kind;
    entry.begin = at;
    at += static_cast<uint64_t>(element_count(entry.shape)) * safetensors_element_size(entry.dtype);
    entry.end = at;
    header.tensors.emplace(name, entry);
  }
  return format_safetensors_header(header);
}

uint64_t end_of(const TensorSource& source) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : source.tensors())
    bytes +=
        static_cast<uint64_t>(element_count(tensor.kind.shape)) * safetensors_element_size(tensor.kind.dtype);
  return bytes;
}

std::map<std::string, FoundWeight> by_model_name(const TensorEntries& entries,
                                                 const LoadWeightsOptions& options, const std::string& path) {
  std::map<std::string, FoundWeight> found;
  for (const auto& [name, kind] : entries) {
    const std::string renamed = options.name ? options.name(name) : name;
    if (renamed.empty()) continue;
    const auto [other, is_new] = found.try_emplace(renamed, FoundWeight{.from = name, .kind = kind});
    if (!is_new)
      refuse_weights("a unique name for each tensor", path,
                     cat("'", renamed, "' for '", other->second.from, "' and '", name, "'"),
                     "correct .name, or leave one out");
  }
  return found;
}

LoadedWeights compare_with(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                           const std::map<std::string, FoundWeight>& found, const std::string& path,
                           bool partial) {
  LoadedWeights result;
  std::map<std::string, FoundWeight> left = found;
  for (const auto& [name, tensor] : tensors) {
    const auto weight = left.find(name);
    if (weight == left.end()) {
      result.missing.push_back(name);
      continue;
    }
    if (weight->second.kind.shape != tensor.sizes())
      refuse_weights(cat("'", name, "' of shape [", join(tensor.sizes(), ", "), "], as in the model,"), path,
                     cat("[", join(weight->second.kind.shape, ", "), "]"),
                     "make the model that was saved, or leave the tensor out by .name");
    result.loaded.push_back(name);
    left.erase(weight);
  }
  for (const auto& [name, weight] : left) result.unexpected.push_back(weight.from);
  const char* const next = "rename the tensors with .name, or set .partial = true";
  if (!partial && !result.missing.empty())
    refuse_weights(
        cat("a tensor for each of the model's"), path,
        cat("none for ", plural(result.missing.size(), "tensor"), ", '", result.missing[0], "' first"), next);
  if (!partial && !result.unexpected.empty())
    refuse_weights("only tensors of the model", path,
                   cat(plural(result.unexpected.size(), "other"), ", '", result.unexpected[0], "' first"),
                   next);
  if (result.loaded.empty())
    refuse_weights("tensors of the model", path, "none of their names", "rename the tensors with .name");
  return result;
}

}  // namespace

LoadedWeights load_weights(torch::nn::Module& model, const std::string& path,
                           const LoadWeightsOptions& options, const Peers& peers) {
  const at::NoGradGuard no_grad;
  TensorSource source;
  std::string head, bytes;
  peers.on_rank0([&] {
    source = TensorSource(weight_files(path));
    if (const auto holes = source.incomplete(); !holes.empty())
      refuse_weights(cat("all of '", holes[0], "'"), path, "some of it", "a rank's file is missing");
    head = head_of(source);
    bytes = cat(end_of(source));
  });
  peers.share(head);
  peers.share(bytes);
  const auto tensors = model_tensors(model);
  std::map<std::string, FoundWeight> found;
  LoadedWeights result;
  peers.together([&] {
    found = by_model_name(parse_safetensors_header(head, std::stoull(bytes), path).tensors, options, path);
    result = compare_with(tensors, found, path, options.partial);
  });
  for (auto& [name, tensor] : tensors) {
    const auto weight = found.find(name);
    if (weight == found.end()) continue;
    const at::Tensor values = at::empty(weight->second.kind.shape, scalar_type_of(weight->second.kind));
    peers.on_rank0([&] {
      source.read(weight->second.from, all_elements(weight->second.kind.shape), values.mutable_data_ptr());
      check_bools(path, weight->second.from, values);
    });
    peers.share(values);
    tensor.copy_(values);
  }
  return result;
}

}  // namespace muster
