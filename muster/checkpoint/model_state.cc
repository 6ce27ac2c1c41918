// A model is compared with a checkpoint by names, types and shapes, in the model's order, so that
// the first difference that is named is the first that a reader of the model would meet.
#include "muster/checkpoint/model_state.h"

#include <torch/nn/module.h>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"

namespace muster {

TensorEntries entries_of(const NamedTensors& tensors) {
  TensorEntries entries;
  for (const auto& [name, tensor] : tensors)
    entries[name] = tensor_entry(tensor.scalar_type(), tensor.sizes().vec());
  return entries;
}

// FullySharded frees the storage of a parameter while nobody computes with it.
void require_memory(const char* owner, const std::string& name, const Tensor& tensor) {
  if (tensor.numel() == 0 || !tensor.has_storage() || tensor.storage().nbytes() > 0)
    return;
  throw failed_precondition(
      owner,
      ": expected whole parameters, got '",
      name,
      "', whose elements are divided over the ranks; pass FullySharded::pieces, or do this "
      "while a guard of FullySharded::whole_parameters() lives");
}

NamedTensorList model_tensors(const Module& model) {
  NamedTensorList tensors;
  for (const auto& list : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& item : list) {
      if (!item.value().defined())
        continue;
      require_memory("checkpoint", item.key(), item.value());
      tensors.emplace_back(item.key(), item.value());
    }
  }
  return tensors;
}

void refuse_saved(const std::string& name, const std::string& expected, const std::string& got) {
  throw invalid_argument("load: expected ",
                         expected,
                         " in '",
                         name,
                         "', as in the model, got ",
                         got,
                         "; load it into the model that it was saved from");
}

// Tensors of the model come first in messages: a missing one says more than one too many.
void check_model(const Module& model, const TensorEntries& entries, const std::string& name) {
  StringSet known;
  for (const auto& [tensor_name, tensor] : model_tensors(model)) {
    known.insert(tensor_name);
    const TensorEntry mine = tensor_entry(tensor.scalar_type(), tensor.sizes().vec());
    const TensorEntry* const found = value_at(entries, tensor_name);
    if (found == nullptr || !found->same_kind(mine))
      refuse_saved(name,
                   cat(to_string(mine), " '", tensor_name, "'"),
                   found == nullptr ? "no tensor of that name" : to_string(*found));
  }
  for (const auto& [tensor_name, entry] : entries)
    if (!known.contains(tensor_name))
      refuse_saved(name, "only tensors of the model", cat("'", tensor_name, "' as well"));
}

}  // namespace muster
