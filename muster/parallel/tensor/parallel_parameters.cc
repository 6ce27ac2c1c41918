// The parameters of a model some of whose layers are sharded over a group: which are sharded, their
// norm, their pieces for a checkpoint, and their whole values. A DividedLayer answers for its own
// parameters; all others are the same on every rank.
#include "muster/parallel/tensor/parallel_parameters.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/optim/each_once.h"

namespace muster {

namespace {

// It returns null for a layer that is whole on every rank.
const DividedLayer* as_divided(const ModulePtr& module) {
  return dynamic_cast<const DividedLayer*>(module.get());
}

// As LibTorch does: the norm of the norms. Undefined gradients count as none.
Tensor norm_of_gradients(const Tensors& parameters, Device device, double norm_type) {
  Tensors norms;
  for (const Tensor& parameter : parameters) {
    if (!parameter.grad().defined())
      continue;
    const Tensor norm = at::linalg_vector_norm(parameter.grad(), norm_type);
    norms.push_back(norm.to(device, kDouble, /*non_blocking=*/true));
  }
  const auto options = at::TensorOptions().device(device).dtype(kDouble);
  return norms.empty() ? at::zeros({}, options)
                       : at::linalg_vector_norm(at::stack(norms), norm_type);
}

// Norms of the same gradients have no variance over the ranks. A parameter between two divided
// layers would have: each rank's gradient of it is that of its own part.
void require_alike(double sum, double sum_of_squares, const ProcessGroup& group) {
  constexpr double kRoundings = 1e-3;
  const double mean = sum / group.size();
  const double variance = sum_of_squares / group.size() - mean * mean;
  if (!(variance > kRoundings * kRoundings * mean * mean))
    return;
  throw failed_precondition(
      "parallel_grad_norm: expected gradients of undivided parameters that are alike on "
      "all ranks, got norms that differ by ",
      std::sqrt(variance) / mean,
      " of their mean (rank ",
      group.job_rank(),
      "); where a parameter lies between two divided layers, use copy_to_group(parameter, "
      "group) in forward, and give all ranks the same samples");
}

// A model without parameters has a norm of type float.
ScalarType type_of_norm(const Tensors& a, const Tensors& b) {
  const auto& some = a.empty() ? b : a;
  return some.empty() ? kFloat : some[0].scalar_type();
}

}  // namespace

// A shared parameter counts once, and as divided if any layer divides it.
ParallelParameters parallel_parameters(const Module& model) {
  TensorImpls divided;
  for (const auto& module : model.modules()) {
    const DividedLayer* layer = as_divided(module);
    if (layer == nullptr)
      continue;
    for (const Tensor& parameter : layer->divided())
      divided.insert(parameter.unsafeGetTensorImpl());
  }
  ParallelParameters sorted;
  for (const Tensor& parameter : optim::each_once(model.parameters())) {
    const bool is_divided = divided.contains(parameter.unsafeGetTensorImpl());
    (is_divided ? sorted.divided : sorted.replicated).push_back(parameter);
  }
  return sorted;
}

// All ranks call it together. Replicated gradients are the same on all, so they are not summed.
Tensor parallel_grad_norm(const Tensors& divided,
                          const Tensors& replicated,
                          ProcessGroup group,
                          double norm_type) {
  if (!(norm_type > 0)) {
    throw invalid_argument("parallel_grad_norm: expected a norm_type above 0, got ",
                           norm_type,
                           "; 2 is the usual one");
  }
  const NoGradGuard no_grad;
  const ScalarType type = type_of_norm(divided, replicated);
  Tensor own = norm_of_gradients(divided, group.device(), norm_type);
  const Tensor common = norm_of_gradients(replicated, group.device(), norm_type);
  if (std::isinf(norm_type)) {
    group.all_reduce(own, ReduceOp::max);
    return at::maximum(own, common).to(type);
  }
  Tensor sums = at::stack({own.pow(norm_type), common, common.square()});
  group.all_reduce(sums);
  if (sums.is_cpu())
    require_alike(sums[1].item<double>(), sums[2].item<double>(), group);
  return (sums[0] + common.pow(norm_type)).pow(1 / norm_type).to(type);
}

// It exchanges nothing: each rank tells its own pieces.
TensorPieces parallel_pieces(const Module& model) {
  TensorPieces all;
  for (const auto& named : model.named_modules("", /*include_self=*/true)) {
    const std::string prefix = named.key().empty() ? "" : named.key() + ".";
    const DividedLayer* layer = as_divided(named.value());
    TensorPieces pieces = layer != nullptr ? layer->pieces() : TensorPieces{};
    if (layer == nullptr)
      for (const auto& parameter : named.value()->named_parameters(/*recurse=*/false))
        pieces.push_back(whole_piece(parameter.key(), parameter.value()));
    for (const auto& buffer : named.value()->named_buffers(/*recurse=*/false))
      pieces.push_back(buffer_piece(buffer.key(), buffer.value()));
    for (TensorPiece& piece : pieces) {
      piece.name = prefix + piece.name;
      all.push_back(std::move(piece));
    }
  }
  note_model(all, model);
  return all;
}

// All ranks call it together, since divided layers gather their parts in the modules' order.
WholeParameters gather_parameters(const Module& model) {
  WholeParameters all;
  for (const auto& named : model.named_modules("", /*include_self=*/true)) {
    const std::string prefix = named.key().empty() ? "" : named.key() + ".";
    const DividedLayer* layer = as_divided(named.value());
    if (layer != nullptr) {
      for (const auto& [name, parameter] : layer->gather_parameters())
        all.emplace(prefix + name, parameter);
      continue;
    }
    for (const auto& parameter : named.value()->named_parameters(/*recurse=*/false))
      all.emplace(prefix + parameter.key(), parameter.value().detach().clone());
  }
  return all;
}

}  // namespace muster
