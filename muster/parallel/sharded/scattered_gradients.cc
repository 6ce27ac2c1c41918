// Collects the gradients of a bucket in a flat buffer, in the layout of its parameters, and reduces
// each rank's part to that rank. The mean is taken by scaling before the sum, so that halves do not
// overflow. Gradients that add up without a reduction are kept in the type of the reduction.
#include "muster/parallel/sharded/scattered_gradients.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/comm/call/number.h"
#include "muster/comm/call/stream_order.h"
#include "muster/optim/parts.h"

namespace muster {

// The factor makes a sum over the group and its replicas a mean over both.
ScatteredGradients::ScatteredGradients(Tensors parameters,
                                       FlatLayout layout,
                                       ProcessGroup group,
                                       std::shared_ptr<GradientBuffers> buffers,
                                       std::optional<ProcessGroup> replicas,
                                       ScalarType dtype)
    : parameters_(std::move(parameters)),
      layout_(std::move(layout)),
      group_(std::move(group)),
      buffers_(std::move(buffers)),
      replicas_(std::move(replicas)),
      dtype_(dtype),
      factor_(1.0 / (group_.size() * (replicas_ ? replicas_->size() : 1))),
      has_(parameters_.size(), false),
      kept_(parameters_.size()),
      sampled_{SampledGradients(group_)} {
  if (replicas_)
    sampled_.emplace_back(*replicas_);
  wanted_ = std::ranges::count_if(parameters_, &Tensor::requires_grad);
}

Tensor ScatteredGradients::new_flat() {
  return buffers_->take(layout_.length(),
                        parameters_[0].options().dtype(dtype_).requires_grad(false));
}

// Moves the gradient into the buffer. The first one makes the buffer.
void ScatteredGradients::take(size_t parameter) {
  Tensor& gradient = parameters_[parameter].mutable_grad();
  const bool is_sparse = gradient.defined() && gradient.layout() != kStrided;
  if (has_[parameter] || is_sparse) {
    throw failed_precondition(
        "sharded gradients: expected one dense gradient of each parameter in a backward, got ",
        has_[parameter] ? "a second one" : "a sparse one",
        " of parameter ",
        parameter,
        " (rank ",
        group_.job_rank(),
        "); ",
        has_[parameter] ? "do not nest backwards" : "make the embedding with sparse(false)");
  }
  const NoGradGuard no_grad;
  if (!flat_.defined()) {
    flat_ = new_flat();
    const int64_t used = layout_.offsets.back() + layout_.counts.back();
    flat_.narrow(0, used, layout_.length() - used).zero_();
  }
  Tensor place = layout_.place(flat_, parameter);
  if (!gradient.defined()) {
    place.zero_();
  } else if (gradient.scalar_type() == dtype_) {
    at::mul_out(place, gradient, at::scalar_tensor(factor_, kDouble));
  } else {
    place.copy_(gradient).mul_(factor_);
  }
  gradient.reset();
  if (kept_[parameter].defined())
    place.add_(std::exchange(kept_[parameter], {}), factor_);
  has_[parameter] = true;
  ++taken_;
}

// It returns whether it took the gradient away; one that has the type already stays.
bool ScatteredGradients::keep(size_t parameter) {
  Tensor& gradient = parameters_[parameter].mutable_grad();
  if (gradient.scalar_type() == dtype_ || gradient.layout() != kStrided)
    return false;
  const NoGradGuard no_grad;
  Tensor& kept = kept_[parameter];
  if (kept.defined()) {
    kept.add_(gradient);
  } else {
    kept = gradient.to(dtype_);
  }
  gradient.reset();
  return true;
}

void ScatteredGradients::forget(size_t parameter) {
  kept_[parameter].reset();
}

// They are not averaged, and would be added to other ones if the parameter is trained again.
void ScatteredGradients::drop_of_frozen() {
  Strings dropped;
  for (const size_t i : indices_of(parameters_)) {
    Tensor& gradient = parameters_[i].mutable_grad();
    if (has_[i] || parameters_[i].requires_grad() || (!gradient.defined() && !keeps(i)))
      continue;
    gradient.reset();
    forget(i);
    dropped.push_back(cat("[", sizes_text(parameters_[i]), "]"));
  }
  if (!dropped.empty() && group_.rank() == 0)
    log_warning(
        "sharded gradients: expected parameters to stay trained between no_sync() and the "
        "backward that averages, got those of ",
        join(dropped, ", "),
        " frozen, whose gradients are dropped (rank ",
        group_.job_rank(),
        "); freeze after a step");
}

void ScatteredGradients::use_here() const {
  use_on_this_stream({flat_});
  use_on_this_stream(kept_);
  give_gradients_to_this_stream(parameters_);
}

// All ranks call it together for the same bucket. Parameters without a gradient count as zeros.
void ScatteredGradients::start() {
  const NoGradGuard no_grad;
  drop_of_frozen();
  // Gradients may have been gathered without a reduction, and not be reached by this backward.
  for (const size_t i : indices_of(parameters_))
    if (!has_[i] && parameters_[i].requires_grad() && (parameters_[i].grad().defined() || keeps(i)))
      take(i);
  if (!flat_.defined())
    flat_ = new_flat().zero_();
  for (const size_t i : indices_of(parameters_))
    if (!has_[i])
      layout_.place(flat_, i).zero_();
  part_ = at::empty({layout_.part}, flat_.options());
  {
    const CallNumber none(-1);  // what is compared is the reduction
    for (SampledGradients& sampled : sampled_)
      sampled.start(flat_);
  }
  work_ = group_.reduce_scatter_async(part_, flat_);
}

// Everything is dropped before the replicas are asked, so an error there leaves nothing behind.
Tensor ScatteredGradients::finish() {
  Work work = *work_;
  Tensor part = part_;
  work.wait();
  use_on_this_stream({part, flat_});
  twins_ = finish_samples();
  drop();
  if (replicas_)
    replicas_->all_reduce(part);
  return part;
}

// Of twins in different groups, the first of the replicas tells.
std::optional<Twins> ScatteredGradients::finish_samples() {
  const auto in_group = sampled_.front().finish(), among_replicas = sampled_.back().finish();
  if (in_group || !replicas_)
    return in_group;
  return replicas_->rank() == 0 ? among_replicas : std::nullopt;
}

// It also removes what a failed backward has left. Gradients that are kept for later stay.
void ScatteredGradients::drop() {
  work_.reset();
  for (SampledGradients& sampled : sampled_)
    sampled.drop();
  flat_.reset();
  part_.reset();
  has_.assign(has_.size(), false);
  taken_ = 0;
}

int64_t ScatteredGradients::bytes() const {
  return layout_.length() * static_cast<int64_t>(c10::elementSize(dtype_));
}

// Gradients add up over backwards until the program clears them.
void add_to_pieces(const Tensor& part,
                   const FlatPieces& pieces,
                   const Tensors& parameters,
                   Tensors& tensors) {
  const NoGradGuard no_grad;
  for (const size_t i : indices_of(pieces)) {
    if (!parameters[pieces[i].parameter].requires_grad())
      continue;
    const Tensor place = part.narrow(0, pieces[i].at, pieces[i].length);
    // No view: zero_grad() throws on views.
    const Tensor mean = place.to(tensors[i].scalar_type()).variable_data();
    Tensor& gradient = tensors[i].mutable_grad();
    if (gradient.defined()) {
      gradient.add_(mean);
    } else {
      gradient = mean;
    }
  }
}

// A hook's stream may have made them. Autograd has let this one wait for it.
void give_gradients_to_this_stream(const Tensors& tensors) {
  use_on_this_stream(mapped(tensors, &Tensor::grad));
}

// Every element is on one rank, so the sum of the ranks' squares is that of the whole.
Tensor sharded_grad_norm(const Tensors& tensors, ProcessGroup& group) {
  const NoGradGuard no_grad;
  Tensor squares = at::zeros({}, at::TensorOptions().device(group.device()).dtype(kDouble));
  for (const Tensor& tensor : tensors) {
    const Tensor& gradient = tensor.grad();
    if (!gradient.defined())
      continue;
    const ScalarType type = c10::promoteTypes(kFloat, gradient.scalar_type());
    squares += at::linalg_vector_norm(gradient, 2, {}, false, type).to(kDouble).square();
  }
  group.all_reduce(squares);
  return squares.sqrt();
}

// The ranks of a divided layer would clip what they have alike by different norms.
void require_whole_layers(const Tensors& parameters, const ProcessGroup& group) {
  const auto divided = std::ranges::find_if(parameters, optim::is_layer_part);
  if (divided == parameters.end())
    return;
  throw failed_precondition(
      "clip_grad_norm: expected layers that are divided over this group alone, got one "
      "that is divided over ranks ",
      join(optim::ranks_of_layer_parts(*divided), ", "),
      " too, whose parts have no norm together (rank ",
      group.job_rank(),
      "); clip by value, muster::clip_grad_value of the optimizer's parameters, or use "
      "DistributedDataParallel and parallel_grad_norm");
}

// All ranks call it together, and get the norm from before the clipping.
Tensor clip_sharded_grads(const Tensors& tensors, double max_norm, ProcessGroup& group) {
  if (!(max_norm >= 0)) {
    throw invalid_argument("clip_grad_norm: expected a max_norm of 0 or more, got ",
                           max_norm,
                           " (rank ",
                           group.job_rank(),
                           "); 1.0 is a common choice");
  }
  const Tensor norm = sharded_grad_norm(tensors, group);
  const NoGradGuard no_grad;
  const Tensor factor = (norm + 1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
  for (const Tensor& tensor : tensors)
    if (tensor.grad().defined())
      tensor.mutable_grad().mul_(factor);
  return norm;
}

}  // namespace muster
