// The pieces of a flat layout under the model's names, for checkpoints. A tied weight is saved
// under all of its names.
#include "muster/parallel/sharded/flat_pieces.h"

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/tensor_text.h"

namespace muster {

// Names are kept by tensor, since a tied weight has several.
ParameterNames::ParameterNames(const Module& model) {
  for (const auto& item : model.named_parameters())
    names_[item.value().unsafeGetTensorImpl()].push_back(item.key());
}

// It throws where the model does not have the parameter.
const Strings& ParameterNames::of(const std::string& owner, const Tensor& parameter) const {
  if (const auto* const found = value_at(names_, parameter.unsafeGetTensorImpl()))
    return *found;
  throw invalid_argument(
      owner,
      ": expected the model whose parameters are divided, got one without a parameter of shape [",
      sizes_text(parameter),
      "]; give the outermost module");
}

// It exchanges nothing: each rank adds what it has.
void add_flat_pieces(TensorPieces& to,
                     const std::string& owner,
                     const ParameterNames& names,
                     const OptimizerParts& parts) {
  const auto& [layout, parameters, pieces, tensors, options] = parts;
  // Parameters without elements lie in no part, so every rank has them whole.
  for (const size_t i : indices_of(parameters))
    if (layout.counts[i] == 0)
      for (const std::string& name : names.of(owner, parameters[i]))
        to.push_back(whole_piece(name, parameters[i].detach()));
  for (const size_t i : indices_of(pieces)) {
    const size_t parameter = pieces[i].parameter;
    for (const std::string& name : names.of(owner, parameters[parameter])) {
      to.push_back({.name = name,
                    .shape = layout.shapes[parameter],
                    .elements = {{.begin = pieces[i].begin, .length = pieces[i].length}},
                    .tensor = tensors[i]});
    }
  }
}

}  // namespace muster
