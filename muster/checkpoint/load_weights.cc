// Rank 0 reads the heads of the files and tries .make with zeros. From both every rank finds the
// same answer to which tensor of the file is which of the model; only then do tensors go round, one
// at a time.
#include "muster/checkpoint/load_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

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

// `next` is what the caller can do about it.
[[noreturn]] void refuse_weights(const std::string& expected,
                                 const std::string& path,
                                 const std::string& got,
                                 const std::string& next) {
  throw Error(ErrorCode::invalid_argument,
              cat("load_weights: expected ", expected, " in '", path, "', got ", got, "; ", next));
}

using ModelTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Returns the head of a safetensors file that would have all tensors of the source, for the other
// ranks.
std::string head_of(const TensorSource& source) {
  SafetensorsHeader header;
  uint64_t at = 0;
  for (const auto& [name, tensor] : source.tensors()) {
    TensorEntry entry = tensor.kind;
    entry.begin = at;
    at += tensor_bytes(entry);
    entry.end = at;
    header.tensors.emplace(name, entry);
  }
  return format_safetensors_header(header);
}

// The size of the data after that head.
uint64_t end_of(const TensorSource& source) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : source.tensors())
    bytes += tensor_bytes(tensor.kind);
  return bytes;
}

// Reads a tensor of the file. Throws: invalid_argument if .make has asked for one that is not
// there.
at::Tensor read_weight(const TensorSource& source,
                       const std::string& name,
                       const std::string& path) {
  const auto found = source.tensors().find(name);
  if (found == source.tensors().end())
    refuse_weights(
        cat("'", name, "', for which .make asks,"), path, "none of that name", "correct .make");
  const TensorEntry& kind = found->second.kind;
  const at::Tensor values = at::empty(kind.shape, scalar_type_of(kind));
  source.read(name, all_elements(kind.shape), values.mutable_data_ptr());
  check_bools(path, name, values);
  return values;
}

// The tensors that .make makes, and those of the file that it makes them of. Rank 0 finds it and
// tells the others.
struct MadeWeights {
  std::set<std::string> made;  // names in the model
  std::set<std::string> used;  // names in the file

  std::string to_bytes() const { return nlohmann::json({made, used}).dump(); }
  static MadeWeights from_bytes(const std::string& bytes) {
    const auto json = nlohmann::json::parse(bytes);
    return {.made = json[0], .used = json[1]};
  }
};

// Calls .make with zeros, so that nothing is read and nothing changes.
MadeWeights try_to_make(const ModelTensors& tensors,
                        const TensorSource& source,
                        const LoadWeightsOptions& options,
                        const std::string& path) {
  MadeWeights result;
  const WeightReader zeros = [&](const std::string& name) {
    const auto found = source.tensors().find(name);
    if (found == source.tensors().end())
      return read_weight(source, name, path);  // throws
    result.used.insert(name);
    return at::zeros(found->second.kind.shape, scalar_type_of(found->second.kind));
  };
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor made = options.make ? options.make(name, zeros) : at::Tensor();
    if (!made.defined())
      continue;
    if (made.sizes() != tensor.sizes())
      refuse_weights(
          cat("'", name, "' of shape [", join(tensor.sizes(), ", "), "], as in the model,"),
          path,
          cat("[", join(made.sizes(), ", "), "] of .make"),
          "correct .make");
    result.made.insert(name);
  }
  return result;
}

// Whether the file has a scale for a tensor, by the names that quantizers give it.
bool has_scale(const TensorEntries& entries, const std::string& name) {
  const size_t dot = name.rfind('.');
  const std::string layer = dot == std::string::npos ? "" : name.substr(0, dot + 1);
  const std::vector<std::string> scales = {name + "_scale",
                                           name + "_scale_inv",
                                           name + ".scale",
                                           layer + "scale",
                                           layer + "scales",
                                           layer + "SCB"};
  return std::ranges::any_of(scales,
                             [&](const std::string& scale) { return entries.contains(scale); });
}

// Refuses whole numbers and scaled fp8 for a tensor of fractions: converted as they are, they would
// be other weights.
void check_not_quantized(const std::string& name,
                         const at::Tensor& tensor,
                         const FoundWeight& weight,
                         const TensorEntries& entries,
                         const std::string& path) {
  const at::ScalarType type = scalar_type_of(weight.kind);
  const bool is_whole = at::isIntegralType(type, /*includeBool=*/false);
  const bool is_scaled = at::isFloat8Type(type) && has_scale(entries, weight.from);
  const bool is_quantized = is_whole || is_scaled;
  if (!is_quantized || !at::isFloatingType(tensor.scalar_type()))
    return;
  refuse_weights(cat("numbers of the model's type for '", name, "'"),
                 path,
                 cat(to_string(weight.kind), " '", weight.from, "', which is quantized"),
                 "multiply it with its scale by .make, or fetch the model as bf16");
}

// PyTorch, too, loads a BatchNorm without its counter.
bool may_be_missing(const std::string& name) {
  constexpr std::string_view kCounter = "num_batches_tracked";
  return name == kCounter || name.ends_with(cat(".", kCounter));
}

// Whether the tensor has been loaded under another of its names, as a tied head has two.
bool is_loaded_by_another_name(const ModelTensors& tensors,
                               const at::Tensor& tensor,
                               const std::vector<std::string>& loaded) {
  const std::set<std::string> names(loaded.begin(), loaded.end());
  return std::ranges::any_of(tensors, [&](const auto& other) {
    return other.second.is_same(tensor) && names.contains(other.first);
  });
}

// Returns the tensors of the file by the names that .name gives them.
std::map<std::string, FoundWeight> by_model_name(const TensorEntries& entries,
                                                 const LoadWeightsOptions& options,
                                                 const std::string& path) {
  std::map<std::string, FoundWeight> found;
  for (const auto& [name, kind] : entries) {
    const std::string renamed = options.name ? options.name(name) : name;
    if (renamed.empty())
      continue;
    const auto [other, is_new] =
        found.try_emplace(renamed, FoundWeight{.from = name, .kind = kind});
    if (!is_new)
      refuse_weights("a unique name for each tensor",
                     path,
                     cat("'", renamed, "' for '", other->second.from, "' and '", name, "'"),
                     "correct .name, or leave one out");
  }
  return found;
}

// A tensor is never reshaped to fit: that would be another weight.
void check_shape(const std::string& name,
                 const at::Tensor& tensor,
                 const FoundWeight& weight,
                 const std::string& path) {
  if (weight.kind.shape == tensor.sizes())
    return;
  refuse_weights(cat("'", name, "' of shape [", join(tensor.sizes(), ", "), "], as in the model,"),
                 path,
                 cat("[", join(weight.kind.shape, ", "), "]"),
                 "make the model that was saved, or leave the tensor out by .name");
}

// Refuses a load that is not what the caller asked for. `partial` allows names that do not meet.
void check_names_meet(const LoadedWeights& result, const std::string& path, bool partial) {
  const char* const next = "rename the tensors with .name, or set .partial = true";
  if (!partial && !result.missing.empty())
    refuse_weights("a tensor for each of the model's",
                   path,
                   cat("none for ",
                       plural(result.missing.size(), "tensor"),
                       ", '",
                       result.missing[0],
                       "' first"),
                   next);
  if (!partial && !result.unexpected.empty())
    refuse_weights(
        "only tensors of the model",
        path,
        cat(plural(result.unexpected.size(), "other"), ", '", result.unexpected[0], "' first"),
        next);
  if (result.loaded.empty())
    refuse_weights(
        "tensors of the model", path, "none of their names", "rename the tensors with .name");
}

// Finds for each tensor of the model the one of the file, and what is left on either side.
LoadedWeights compare_with(const ModelTensors& tensors,
                           const std::map<std::string, FoundWeight>& found,
                           const MadeWeights& made,
                           const TensorEntries& entries,
                           const std::string& path,
                           bool partial) {
  LoadedWeights result;
  std::map<std::string, FoundWeight> left = found;
  for (const auto& [name, tensor] : tensors) {
    const auto weight = left.find(name);
    if (made.made.contains(name)) {
      result.loaded.push_back(name);
      continue;
    }
    if (weight == left.end()) {
      result.missing.push_back(name);
      continue;
    }
    check_shape(name, tensor, weight->second, path);
    check_not_quantized(name, tensor, weight->second, entries, path);
    result.loaded.push_back(name);
    left.erase(weight);
  }
  const std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  std::erase_if(result.missing, [&](const std::string& name) {
    return may_be_missing(name) ||
           is_loaded_by_another_name(tensors, by_name.at(name), result.loaded);
  });
  for (const auto& [name, weight] : left)
    if (!made.used.contains(weight.from))
      result.unexpected.push_back(weight.from);
  check_names_meet(result, path, partial);
  return result;
}

// The name is one of the model's, so it is found.
const at::Tensor& named(const ModelTensors& tensors, const std::string& name) {
  return std::ranges::find(tensors, name, &ModelTensors::value_type::first)->second;
}

// Refuses two contents for a tensor that the model has under two names.
void check_same_if_shared(const std::vector<at::Tensor>& filled,
                          const std::string& name,
                          const at::Tensor& tensor,
                          const at::Tensor& values,
                          const std::string& path) {
  const bool is_filled =
      std::ranges::any_of(filled, [&](const at::Tensor& other) { return other.is_same(tensor); });
  if (!is_filled || at::equal(tensor.cpu(), values))
    return;
  refuse_weights("one content of the tensor that the model shares",
                 path,
                 cat("another as '", name, "' than under its other name"),
                 "leave one out by .name");
}

}  // namespace

LoadedWeights load_weights(torch::nn::Module& model,
                           const std::string& path,
                           const LoadWeightsOptions& options,
                           const Peers& peers) {
  const at::NoGradGuard no_grad;
  TensorSource source;
  std::string head, bytes;
  peers.on_rank0([&] {
    source = TensorSource(weight_files(path));
    if (const auto holes = source.incomplete(); !holes.empty())
      refuse_weights(
          cat("all of '", holes[0], "'"), path, "some of it", "a rank's file is missing");
    head = head_of(source);
    bytes = cat(end_of(source));
  });
  peers.share(head);
  peers.share(bytes);
  // Only rank 0 has the files, so it alone can try .make.
  const auto tensors = model_tensors(model);
  std::string made_bytes;
  peers.on_rank0([&] { made_bytes = try_to_make(tensors, source, options, path).to_bytes(); });
  peers.share(made_bytes);
  const MadeWeights made = MadeWeights::from_bytes(made_bytes);
  std::map<std::string, FoundWeight> found;
  LoadedWeights result;
  // All ranks compare: a model that differs on one rank is refused on all.
  peers.together([&] {
    const TensorEntries entries = parse_safetensors_header(head, std::stoull(bytes), path).tensors;
    found = by_model_name(entries, options, path);
    result = compare_with(tensors, found, made, entries, path, options.partial);
  });
  const WeightReader reader = [&](const std::string& name) {
    return read_weight(source, name, path);
  };
  // One tensor at a time: no rank needs memory for all of them.
  std::vector<at::Tensor> filled;
  for (const std::string& name : result.loaded) {
    const at::Tensor& tensor = named(tensors, name);
    const at::Tensor values = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    peers.on_rank0([&] {
      const bool is_made = made.made.contains(name);
      values.copy_(is_made ? options.make(name, reader) : reader(found.at(name).from));
      check_same_if_shared(filled, name, tensor, values, path);
    });
    peers.share(values);
    tensor.copy_(values);
    filled.push_back(tensor);
  }
  return result;
}

}  // namespace muster
