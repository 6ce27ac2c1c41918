// The names of a file go through LoadWeightsOptions::name and then through the table. All ranks do
// so with the same names, so all find the same.
#include "muster/checkpoint/found_weights.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/checkpoint/weight_names.h"

namespace muster {

namespace {

const char* const kCorrectNames = "correct .name or .names, or leave one out";

// A matrix's sides change places; other tensors are the same either way.
Int64s shape_in_model(const TensorEntry& entry, WeightForm form) {
  Int64s shape = entry.shape;
  if (form == WeightForm::transposed && shape.size() == 2)
    std::swap(shape[0], shape[1]);
  return shape;
}

// Adds a tensor of the file to what there is of the model's.
void add_part(FoundWeight& weight,
              const WeightPlace& place,
              const std::string& name,
              const TensorEntry& entry,
              const std::string& path) {
  const Int64s shape = shape_in_model(entry, place.form);
  const bool is_first = all_of(weight.parts, [](const auto& part) { return part.empty(); });
  if (is_first) {
    weight.parts.resize(place.parts.size());
    weight.form = place.form;
    weight.kind = {.dtype = entry.dtype, .shape = shape};
    weight.parts[place.part] = name;
    return;
  }
  const auto refuse = [&](const std::string& got) {
    refuse_weights(path, "a unique name for each tensor", got, kCorrectNames);
  };
  const std::string& taken = weight.parts[place.part % weight.parts.size()];
  if (!taken.empty()) {
    const bool is_copy = place.parts.size() == 1 && weight.parts.size() == 1 &&
                         place.form == weight.form && shape == weight.kind.shape;
    if (!is_copy)
      refuse(cat("'", place.model, "' for '", taken, "' and '", name, "'"));
    weight.copies.push_back(name);
    return;
  }
  Int64s sum = shape;
  if (!sum.empty() && sum.size() == weight.kind.shape.size())
    sum[0] = weight.kind.shape[0];
  if (sum.empty() || sum != weight.kind.shape)
    refuse_weights(path,
                   cat("parts of '", place.model, "' that differ in their first dimension alone"),
                   cat("'", name, "' of shape [", join(entry.shape, ", "), "] beside others"),
                   kCorrectNames);
  weight.kind.shape[0] += shape[0];
  weight.parts[place.part] = name;
}

Tensor in_form(const Tensor& tensor, WeightForm form) {
  return form == WeightForm::transposed && tensor.dim() == 2 ? tensor.t() : tensor;
}

}  // namespace

FoundWeights find_weights(const TensorEntries& entries,
                          const LoadWeightsOptions& options,
                          const std::string& path) {
  FoundWeights found;
  for (const auto& [name, entry] : entries) {
    const std::string renamed = options.name ? options.name(name) : name;
    if (renamed.empty())
      continue;
    const auto in_table = weight_in_model(options.names, renamed);
    const WeightPlace place = in_table.value_or(WeightPlace{.model = renamed, .parts = {renamed}});
    if (place.model.empty() || (options.only && !options.only(place.model)))
      continue;
    const auto [weight, is_new] = found.try_emplace(place.model);
    if (!is_new && !in_table)
      refuse_weights(path,
                     "a unique name for each tensor",
                     cat("'", renamed, "' for '", weight->second.parts[0], "' and '", name, "'"),
                     kCorrectNames);
    if (is_new)
      weight->second.missing = place.parts;
    add_part(weight->second, place, name, entry, path);
    std::erase(weight->second.missing, place.parts[place.part]);
  }
  return found;
}

Tensor read_found(const FoundWeight& weight, const WeightReader& file, const std::string& path) {
  Tensors parts =
      mapped(weight.parts, [&](const auto& name) { return in_form(file(name), weight.form); });
  for (const auto& copy : weight.copies) {
    if (at::equal(in_form(file(copy), weight.form), parts[0]))
      continue;
    refuse_weights(path,
                   cat("'", copy, "' to be a copy of '", weight.parts[0], "'"),
                   "other values",
                   "leave one of them out, or make the model with two tensors");
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace muster
