// Rank 0 reads the heads of the files and tries .make with zeros. From both every rank finds the
// same answer to which tensor of the file is which of the model; only then do tensors go round, one
// at a time.
#include "muster/checkpoint/load_weights.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "muster/base/contains.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/found_weights.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/safetensors_dtype.h"
#include "muster/checkpoint/weight_source.h"

namespace muster {

namespace {

// The tensors that are read; where `reads` is false, the others.
TensorEntries entries_to_read(const WeightSource& source, bool reads = true) {
  TensorEntries entries = source.tensors();
  std::erase_if(entries, [&](const auto& item) { return source.is_readable(item.first) != reads; });
  return entries;
}

// Returns the head of a safetensors file that would have all tensors that are read of the source,
// for the other ranks.
SafetensorsHead head_of(const WeightSource& source) {
  SafetensorsHeader header{.tensors = entries_to_read(source)};
  const uint64_t data_bytes = lay_out(header);
  return {format_safetensors_header(header), data_bytes};
}

// The tensors that .make makes, and those of the file that it makes them of. Rank 0 finds it and
// tells the others.
struct MadeWeights {
  StringSet made;  // names in the model
  StringSet used;  // names in the file

  std::string to_bytes() const { return nlohmann::json({made, used}).dump(); }
  static MadeWeights from_bytes(const std::string& bytes) {
    const auto json = nlohmann::json::parse(bytes);
    return {.made = json[0], .used = json[1]};
  }
};

// Whether a tensor of this name is the scale of another one in its layer, the `leaf`. Quantizers
// name it after that (weight_scale_inv, weight.scale, scale_weight), or scale, scales or SCB. A
// layer_scale is a weight.
bool is_scale_of(const std::string& leaf, const std::string& other) {
  const size_t own = other.starts_with(leaf + ".") ? leaf.size() + 1 : 0;
  const bool is_inner = other.find('.', own) != npos;
  const bool is_named_after_it = has_text(other, "scale") && has_text(other, leaf);
  return !is_inner && other != leaf &&
         (is_named_after_it || other == "scale" || other == "scales" || other == "SCB");
}

// Whether the file has a scale for a tensor.
bool has_scale(const TensorEntries& entries, const std::string& name) {
  const size_t begin = name.rfind('.') + 1;
  const auto layer = name.substr(0, begin);
  for (auto at = entries.lower_bound(layer); at != entries.end(); ++at) {
    if (!at->first.starts_with(layer))
      break;
    if (is_scale_of(name.substr(begin), at->first.substr(begin)))
      return true;
  }
  return false;
}

// PyTorch, too, loads a BatchNorm without its counter.
bool may_be_missing(const std::string& name) {
  constexpr std::string_view kCounter = "num_batches_tracked";
  return name == kCounter || name.ends_with(cat(".", kCounter));
}

// Whether the tensor has been loaded under another of its names, as a tied head has two.
bool is_loaded_by_another_name(const NamedTensorList& tensors,
                               const Tensor& tensor,
                               const Strings& loaded) {
  const StringSet names(loaded.begin(), loaded.end());
  return any_of(tensors, [&](const auto& other) {
    return other.second.is_same(tensor) && names.contains(other.first);
  });
}

// The name is one of the model's, so it is found.
const Tensor& named(const NamedTensorList& tensors, const std::string& name) {
  return std::ranges::find(tensors, name, &NamedTensorList::value_type::first)->second;
}

// Where the file's numbers are not the model's. Of truth values each whole number is one, as 255 in
// a mask of bytes.
Tensor differing(const Tensor& given, const Tensor& values) {
  if (values.scalar_type() != kBool || given.is_complex())
    return values.to(given.scalar_type()).ne(given);
  const Tensor numbers = given.to(kDouble);
  return numbers.sub(numbers.trunc()).ne(0);  // an infinity becomes NaN
}

// Opens the files on rank 0, and gives every rank the kinds of their tensors.
TensorEntries share_entries(WeightSourcePtr& source,
                            const std::string& path,
                            const std::string& part,
                            const Peers& peers) {
  SafetensorsHead head;
  peers.on_rank0([&] {
    source = open_weights(path, part);
    head = head_of(*source);
  });
  share_head(head, peers);
  return parse_safetensors_header(head.json, head.data_bytes, path).tensors;
}

// The model's tensors that the caller wants.
NamedTensorList wanted_tensors(const Module& model,
                               const std::function<bool(const std::string&)>& only) {
  NamedTensorList tensors = model_tensors(model);
  if (only)
    std::erase_if(tensors, [&](const auto& item) { return !only(item.first); });
  return tensors;
}

// One load: rank 0 has the files, and all ranks compare their tensors with the model's.
class WeightLoad {
 public:
  WeightLoad(const Module& model,
             const std::string& path,
             const LoadWeightsOptions& options,
             const Peers& peers)
      : path_(options.part.empty() ? path : cat(path, ":", options.part)),
        options_(options),
        peers_(peers),
        entries_(share_entries(source_, path, options.part, peers)),
        tensors_(wanted_tensors(model, options.only)) {}

  LoadedWeights load() {
    // Only rank 0 has the files, so it alone can try .make.
    std::string made;
    peers_.on_rank0([&] { made = try_to_make().to_bytes(); });
    peers_.share(made);
    made_ = MadeWeights::from_bytes(made);
    LoadedWeights result;
    // All ranks compare: a model that differs on one rank is refused on all.
    peers_.together([&] {
      found_ = find_weights(entries_, options_, path_);
      if (source_)
        require_readable();
      result = compare();
    });
    // One tensor at a time: no rank needs memory for all of them.
    Tensors filled;
    for (const auto& name : result.loaded) {
      const Tensor& tensor = named(tensors_, name);
      const Tensor values = at::empty(tensor.sizes(), tensor.options().device(kCPU));
      peers_.on_rank0([&] { read(name, tensor, filled, values); });
      peers_.share(values);
      tensor.copy_(values);
      filled.push_back(tensor);
    }
    return result;
  }

 private:
  // Reads a tensor of the model on rank 0.
  void read(const std::string& name,
            const Tensor& tensor,
            const Tensors& filled,
            const Tensor& values) const {
    const WeightReader reader = [&](const std::string& in_file) {
      asked_for(in_file);
      return source_->read(in_file);
    };
    const Tensor saved = made_.made.contains(name) ? options_.make(name, reader)
                                                   : read_found(found_.at(name), reader, path_);
    values.copy_(saved);
    check_stays_whole(name, saved, values);
    check_stays_finite(name, saved, values);
    check_same_if_shared(filled, name, tensor, values);
  }

  // Throws: invalid_argument if .make has asked for a tensor that is not there.
  const TensorEntry& asked_for(const std::string& name) const {
    const auto found = source_->tensors().find(name);
    if (found == source_->tensors().end())
      refuse_weights(
          path_, cat("'", name, "', for which .make asks,"), "none of that name", "correct .make");
    return found->second;
  }

  // Calls .make with zeros, so that nothing is read and nothing changes.
  MadeWeights try_to_make() const {
    MadeWeights result;
    if (!options_.make)
      return result;
    const WeightReader zeros = [&](const std::string& name) {
      const TensorEntry& kind = asked_for(name);
      result.used.insert(name);
      return at::zeros(kind.shape, scalar_type_of(kind));
    };
    for (const auto& [name, tensor] : tensors_) {
      const Tensor made = options_.make(name, zeros);
      if (!made.defined())
        continue;
      if (made.sizes() != tensor.sizes())
        refuse_weights(path_,
                       cat("'", name, "' of shape [", sizes_text(tensor), "], as in the model,"),
                       cat("[", sizes_text(made), "] of .make"),
                       "correct .make");
      result.made.insert(name);
    }
    return result;
  }

  // Refuses complex numbers for a tensor of real ones, and whole numbers and scaled fp8 for one of
  // fractions: converted as they are, they would be other weights.
  void check_can_be_converted(const std::string& name,
                              const Tensor& tensor,
                              const FoundWeight& weight) const {
    if (at::isComplexType(tensor.scalar_type()))
      return;
    for (const auto& part : weight.parts) {
      const TensorEntry& kind = entries_.at(part);
      const ScalarType type = scalar_type_of(kind);
      if (at::isComplexType(type))
        refuse_weights(
            path_,
            cat("real numbers for '", name, "'"),
            cat(to_string(kind), " '", part, "', of which only the real parts would stay"),
            "take the tensor's parts by .make");
      const bool is_whole = at::isIntegralType(type, /*includeBool=*/false);
      const bool is_scaled = at::isFloat8Type(type) && has_scale(entries_, part);
      if (at::isFloatingType(tensor.scalar_type()) && (is_whole || is_scaled))
        refuse_weights(path_,
                       cat("numbers of the model's type for '", name, "'"),
                       cat(to_string(kind), " '", part, "', which is quantized"),
                       "multiply it with its scale by .make, or fetch the model as bf16");
    }
  }

  // A tensor is never reshaped to fit: that would be another weight.
  void check_shape(const std::string& name, const Tensor& tensor, const FoundWeight& weight) const {
    if (!weight.missing.empty())
      refuse_weights(path_,
                     cat("'", weight.missing[0], "', a part of the model's '", name, "',"),
                     "none of that name",
                     "correct .names");
    if (weight.kind.shape == tensor.sizes())
      return;
    const bool is_renamed = weight.parts[0] != name;
    refuse_weights(path_,
                   cat("'", name, "' of shape [", sizes_text(tensor), "], as in the model,"),
                   cat("[",
                       join(weight.kind.shape, ", "),
                       "]",
                       is_renamed ? cat(" of '", join(weight.parts, "', '"), "'") : ""),
                   "make the model that was saved, or leave the tensor out by .name");
  }

  // Refuses a load that is not what the caller asked for. `partial` allows names that do not meet.
  void check_names_meet(const LoadedWeights& result) const {
    const char* const next = "rename the tensors with .name or .names, or set .partial = true";
    if (!options_.partial && !result.missing.empty())
      refuse_weights(path_,
                     "a tensor for each of the model's",
                     cat("none for ",
                         plural(result.missing.size(), "tensor"),
                         ", '",
                         result.missing[0],
                         "' first"),
                     next);
    if (!options_.partial && !result.unexpected.empty())
      refuse_weights(
          path_,
          "only tensors of the model",
          cat(plural(result.unexpected.size(), "other"), ", '", result.unexpected[0], "' first"),
          next);
    if (result.loaded.empty())
      refuse_weights(path_,
                     "tensors of the model",
                     "none of their names",
                     "rename the tensors with .name or .names");
  }

  // Refuses what the model needs and the file has only in a form that is not read. What it does not
  // need is passed over, as all that is no tensor.
  void require_readable() const {
    StringSet needed;
    for (const auto& [name, tensor] : tensors_)
      if (const auto weight = found_.find(name);
          weight == found_.end() || !weight->second.missing.empty())
        needed.insert(name);
    for (const auto& name : made_.made)
      needed.erase(name);
    for (const auto& [name, kind] : entries_to_read(*source_, /*reads=*/false))
      for (const auto& [in_model, weight] : find_weights({{name, kind}}, options_, path_))
        if (needed.contains(in_model))
          source_->read(name);  // throws
  }

  // Finds for each tensor of the model the one of the file, and what is left on either side.
  LoadedWeights compare() const {
    LoadedWeights result;
    FoundWeights left = found_;
    for (const auto& [name, tensor] : tensors_) {
      const auto weight = left.find(name);
      if (made_.made.contains(name)) {
        result.loaded.push_back(name);
        continue;
      }
      if (weight == left.end()) {
        result.missing.push_back(name);
        continue;
      }
      check_shape(name, tensor, weight->second);
      check_can_be_converted(name, tensor, weight->second);
      result.loaded.push_back(name);
      left.erase(weight);
    }
    const NamedTensors by_name(tensors_.begin(), tensors_.end());
    std::erase_if(result.missing, [&](const auto& name) {
      return may_be_missing(name) ||
             is_loaded_by_another_name(tensors_, by_name.at(name), result.loaded);
    });
    for (const auto& [name, weight] : left)
      for (const auto& part : weight.parts)
        if (!part.empty() && !made_.used.contains(part))
          result.unexpected.push_back(part);
    check_names_meet(result);
    return result;
  }

  // Refuses two contents for a tensor that the model has under two names.
  void check_same_if_shared(const Tensors& filled,
                            const std::string& name,
                            const Tensor& tensor,
                            const Tensor& values) const {
    const bool is_filled =
        any_of(filled, [&](const Tensor& other) { return other.is_same(tensor); });
    if (!is_filled || at::equal(tensor.cpu(), values))
      return;
    refuse_weights(path_,
                   "one content of the tensor that the model shares",
                   cat("another as '", name, "' than under its other name"),
                   "leave one out by .name");
  }

  // Refuses numbers that the model's whole numbers or truth values are not: 0.5, NaN, 300 for a
  // byte.
  void check_stays_whole(const std::string& name, const Tensor& saved, const Tensor& values) const {
    const bool is_whole = at::isIntegralType(values.scalar_type(), /*includeBool=*/true);
    if (!is_whole || saved.scalar_type() == values.scalar_type())
      return;
    const Tensor given = saved.cpu().expand_as(values);
    const Tensor others = differing(given, values);
    if (!others.any().item<bool>())
      return;
    refuse_weights(path_,
                   cat("numbers that ", toString(values.scalar_type()), " has for '", name, "'"),
                   cat(given.masked_select(others)[0].item<double>(),
                       ", which becomes ",
                       values.masked_select(others)[0].item<double>(),
                       " in it"),
                   "convert them by .make, or give the model's tensor the file's type");
  }

  // Refuses numbers that the model's fractions have not. An infinity of the file stays one.
  void check_stays_finite(const std::string& name,
                          const Tensor& saved,
                          const Tensor& values) const {
    if (!at::isFloatingType(values.scalar_type()) || saved.scalar_type() == values.scalar_type())
      return;
    const Tensor lost = values.to(kFloat).isfinite().logical_not();
    if (!lost.any().item<bool>())
      return;
    const Tensor wide = saved.to(kDouble).cpu().expand_as(values);
    const Tensor too_large = lost.logical_and(wide.isfinite());
    if (!too_large.any().item<bool>())
      return;
    refuse_weights(
        path_,
        cat("numbers that ", toString(values.scalar_type()), " has for '", name, "'"),
        cat(wide.masked_select(too_large)[0].item<double>(), ", which becomes infinite in it"),
        "load into a model of bf16 or fp32, and convert what remains small enough");
  }

  const std::string path_;
  const LoadWeightsOptions& options_;
  const Peers& peers_;
  WeightSourcePtr source_;  // on rank 0
  const TensorEntries entries_;
  const NamedTensorList tensors_;  // of the model
  FoundWeights found_;
  MadeWeights made_;
};

}  // namespace

LoadedWeights load_weights(Module& model,
                           const std::string& path,
                           const LoadWeightsOptions& options,
                           const Peers& peers) {
  const NoGradGuard no_grad;
  check_weight_names(options.names);
  LoadedWeights result = WeightLoad(model, path, options, peers).load();
  at::autocast::clear_cache();  // a guard around the call would go on with the weights of before
  return result;
}

WeightShapes weight_shapes(const std::string& path, const WeightNames& names, const Peers& peers) {
  check_weight_names(names);
  WeightSourcePtr source;
  const TensorEntries entries = share_entries(source, path, /*part=*/"", peers);
  WeightShapes shapes;
  for (const auto& [name, weight] : find_weights(entries, {.names = names}, path))
    if (weight.missing.empty())
      shapes.emplace(name, weight.kind.shape);
  return shapes;
}

}  // namespace muster
