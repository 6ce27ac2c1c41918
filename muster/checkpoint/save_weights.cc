// The tensors of the file are views of the model's, so a second copy of one exists only while it is
// written.
#include "muster/checkpoint/save_weights.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <system_error>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/indices_of.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/files/durable_file.h"
#include "muster/checkpoint/files/path_facts.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/safetensors.h"

namespace muster {

namespace {

constexpr Refusal refuse_to_save{"save_weights", "correct .names or .only"};

// Cuts the tensor into the parts that the file has of it.
void put_parts(NamedTensors& out,
               const std::string& name,
               const Tensor& tensor,
               const WeightPlace& place) {
  const int64_t parts = place.parts.size();
  if (parts > 1 && (tensor.dim() == 0 || tensor.size(0) % parts != 0))
    refuse_to_save(cat("a first dimension that ", parts, " parts divide"),
                   cat("'", name, "' of shape [", sizes_text(tensor), "]"));
  for (const int64_t i : indices_below(parts)) {
    Tensor part = parts > 1 ? tensor.chunk(parts)[i] : tensor;
    if (place.form == WeightForm::transposed && part.dim() == 2)
      part = part.t();
    if (!out.emplace(place.parts[i], part).second)
      refuse_to_save("a unique name for each tensor",
                     cat("'", place.parts[i], "' for '", name, "' and another"));
  }
}

NamedTensors tensors_of_file(const Module& model, const SaveWeightsOptions& options) {
  NamedTensors out;
  Tensors written;
  for (const auto& [name, tensor] : model_tensors(model)) {
    const bool is_written =
        any_of(written, [&tensor = tensor](const Tensor& other) { return other.is_same(tensor); });
    if (is_written || (options.only && !options.only(name)))
      continue;
    written.push_back(tensor);
    put_parts(out, name, tensor.detach(), weight_in_file(options.names, name));
  }
  if (out.empty())
    refuse_to_save("tensors to save", "none");
  return out;
}

// Writes beside the file first, so that a reader never sees a part of it.
void write_whole(const std::filesystem::path& file,
                 const NamedTensors& tensors,
                 const SaveWeightsOptions& options) {
  if (!options.replace && exists_at(file))
    throw invalid_argument("save_weights: expected a new file, got '",
                           file.string(),
                           "', which exists; name another, or set .replace = true");
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::filesystem::create_directories(folder);
  const std::filesystem::path aside = name_aside(file);
  try {
    write_safetensors(folder, aside.filename(), tensors, options.metadata);
    std::filesystem::rename(aside, file);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(aside, ignored);
    throw;
  }
  sync_folder(folder);
}

}  // namespace

void save_weights(const Module& model,
                  const std::string& path,
                  const SaveWeightsOptions& options,
                  const Peers& peers) {
  const NoGradGuard no_grad;
  check_weight_names(options.names);
  peers.together([&] {
    const NamedTensors tensors = tensors_of_file(model, options);
    if (peers.rank() == 0)
      write_whole(path, tensors, options);
  });
}

}  // namespace muster
