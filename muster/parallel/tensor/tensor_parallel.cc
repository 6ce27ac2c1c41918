// Linear layers sharded over a group. A column-parallel layer has some of the outputs on each rank,
// and a row-parallel one some of the inputs; in a row they need one sum. With a sequence dimension
// the ranks hold different tokens outside of the pair, and the sum becomes a reduce-scatter.
#include "muster/parallel/tensor/tensor_parallel.h"

#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/text_of.h"
#include "muster/base/torch_names.h"
#include "muster/optim/lbfgs_caller.h"
#include "muster/optim/parts.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/tensor/cut_weights.h"
#include "muster/parallel/tensor/group_collectives.h"

namespace muster {

namespace {

constexpr const char* kPartKey = "part_of_ranks";  // in files of torch::save

// Returns this rank's part of each of `stacks`, with storage of its own. Stacks are layers that
// were joined into one, such as queries, keys and values.
Tensor own_outputs(const Tensor& whole, int64_t stacks, OwnRows rows) {
  if (!whole.defined())
    return {};
  const Tensor parts = whole.detach().unflatten(0, {stacks, -1}).narrow(1, rows.begin, rows.length);
  return parts.flatten(0, 1).clone(at::MemoryFormat::Contiguous);
}

// Returns what is wrong with a size that is to be sharded, or nothing.
std::string wrong_division(const char* call,
                           const char* what,
                           int64_t size,
                           const ProcessGroup& group) {
  if (size % group.size() == 0)
    return {};
  return cat(call,
             ": expected ",
             what,
             " that ",
             plural(group.size(), "rank"),
             " divide, got ",
             size,
             " (rank ",
             group.job_rank(),
             "); change the layer, or the group's size");
}

// It returns what is wrong with the options, or nothing.
std::string wrong_column(const torch::nn::Linear& layer,
                         const ColumnOptions& options,
                         const ProcessGroup& group) {
  const Tensor& weight = layer->weight;
  if (const auto wrong = wrong_tie("column_parallel", *layer, weight, group); !wrong.empty())
    return wrong;
  const int64_t stacks = options.stacks;
  const int64_t outputs = weight.size(0);
  const bool is_stacked_evenly = stacks >= 1 && outputs % stacks == 0;
  if (!is_stacked_evenly || (options.uneven && stacks != 1)) {
    return cat(
        "column_parallel: expected stacks of equal size, and only one stack with .uneven, got ",
        stacks,
        " stacks of ",
        outputs,
        " outputs (rank ",
        group.job_rank(),
        "); correct the options");
  }
  if (!options.uneven)
    return wrong_division(
        "column_parallel", stacks == 1 ? "outputs" : "outputs a stack", outputs / stacks, group);
  if (outputs >= group.size())
    return {};
  return cat("column_parallel: expected an output for each of ",
             plural(group.size(), "rank"),
             ", got ",
             outputs,
             " (rank ",
             group.job_rank(),
             "); use a smaller group");
}

// Ranks compare these terms, so another layer on one of them is refused on all.
Terms layer_terms(const torch::nn::Linear& layer, const std::optional<int64_t>& sequence_dim) {
  Tensors tensors{layer->weight};
  if (layer->bias.defined())
    tensors.push_back(layer->bias);
  Terms terms = terms_of("parameter", tensors);
  terms.push_back({"sequence_dim", text_of(sequence_dim, "none")});
  return terms;
}

}  // namespace

// Other ranks' files have the same names and shapes, so the file says whose part it has. The entry
// is a buffer's, which Module::load of a plain layer leaves alone.
void DividedLayer::save(torch::serialize::OutputArchive& archive) const {
  Module::save(archive);
  const Tensor which = at::empty({2}, kLong);
  which[0] = group_.rank();
  which[1] = group_.size();
  archive.write(kPartKey, which, /*is_buffer=*/true);
}

// Parts of one shape would pass for each other. A file that does not say whose part it has, as of
// earlier versions, is loaded. The parameters stay as they are where it throws.
void DividedLayer::load(torch::serialize::InputArchive& archive) {
  Tensor which;
  if (archive.try_read(kPartKey, which, /*is_buffer=*/true)) {
    const auto rank = which[0].item<int64_t>(), ranks = which[1].item<int64_t>();
    if (rank != group_.rank() || ranks != group_.size()) {
      throw invalid_argument(
          call_,
          ": expected a file of part ",
          group_.rank(),
          " of ",
          group_.size(),
          ", got one of part ",
          rank,
          " of ",
          ranks,
          " (rank ",
          group_.job_rank(),
          "); load on each rank what it has saved, or use Checkpoints, which divide anew");
    }
  }
  Module::load(archive);
  has_loaded_ = true;
}

// Ranks that have not loaded are in another call, so that the group says on both sides that the
// calls differ.
void DividedLayer::meet_after_load() {
  if (!std::exchange(has_loaded_, false) || group_.size() == 1)
    return;
  try {
    group_.all_gather_bytes("", cat("of ranks that have loaded their part of a ", call_));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument)
      throw;
    throw invalid_argument(call_,
                           ": expected every rank of the group to load its part, or none (rank ",
                           group_.job_rank(),
                           "); call torch::load on all of them before the next forward: ",
                           error.message());
  }
}

void DividedLayer::begin_forward() {
  constexpr int64_t kLookedForwards = 2;
  const bool is_trained = at::GradMode::is_enabled() && any_of(divided(), &Tensor::requires_grad);
  if (is_trained && group_.size() > 1 && trained_forwards_ < kLookedForwards) {
    ++trained_forwards_;
    optim::refuse_lbfgs_caller(call_, group_.job_rank());
  }
  meet_after_load();
}

// It looks at the shape alone, so it costs a step nothing.
void DividedLayer::require_part(const char* name,
                                const Tensor& mine,
                                int64_t dim,
                                int64_t length) const {
  if (dim < mine.dim() && mine.size(dim) == length)
    return;
  throw invalid_argument(call_,
                         ": expected this rank's part of '",
                         name,
                         "', ",
                         length,
                         " along dimension ",
                         dim,
                         ", got [",
                         sizes_text(mine),
                         "] (rank ",
                         group_.job_rank(),
                         "); load an undivided model's file before the layers are divided");
}

// All ranks construct it together, from the same whole layer.
ColumnParallelLinearImpl::ColumnParallelLinearImpl(const torch::nn::Linear& whole,
                                                   ProcessGroup group,
                                                   ColumnOptions options)
    : DividedLayer("column_parallel", std::move(group)),
      options_(options),
      outputs_(whole->weight.size(0)) {
  const int64_t stacks = options_.stacks;
  Terms terms = layer_terms(whole, options_.sequence_dim);
  terms.push_back({"stacks", cat(stacks, options_.uneven ? ", uneven" : "")});
  require_agreement(group_, "column_parallel", wrong_column(whole, options_, group_), terms);
  const OwnRows rows = own_rows(outputs_ / stacks, group_);
  weight = register_parameter(
      "weight", own_outputs(whole->weight, stacks, rows), whole->weight.requires_grad());
  remember_cut(*whole, whole->weight, weight);
  bias = register_parameter("bias",
                            own_outputs(whole->bias, stacks, rows),
                            whole->bias.defined() && whole->bias.requires_grad());
  if (group_.size() > 1)
    optim::mark_layer_parts(bias.defined() ? std::vector{weight, bias} : std::vector{weight},
                            group_.job_ranks());
}

// A whole layer's outputs would pass for this rank's.
void ColumnParallelLinearImpl::require_own_parts() const {
  const int64_t length = options_.stacks * own_rows(outputs_ / options_.stacks, group_).length;
  require_part("weight", weight, 0, length);
  if (bias.defined())
    require_part("bias", bias, 0, length);
}

// All ranks call it together where the tokens are sharded, since it gathers them.
Tensor ColumnParallelLinearImpl::forward(const Tensor& x) {
  require_own_parts();
  begin_forward();
  if (!options_.sequence_dim)
    same_input_.require("column_parallel", x, weight, group_);
  const Tensor input = options_.sequence_dim ? gather_sequence(x, group_, *options_.sequence_dim)
                                             : copy_to_group(x, group_);
  return at::linear(input, weight, bias);
}

// All ranks call it together, since it gathers the parts.
WholeParameters ColumnParallelLinearImpl::gather_parameters() const {
  require_own_parts();
  const auto whole = [&](const Tensor& mine) {
    if (options_.stacks == 1)
      return gathered_rows(mine, outputs_, group_);
    const Tensor stacked = mine.detach().unflatten(0, {options_.stacks, -1});
    return gathered(stacked, group_, 1).flatten(0, 1);
  };
  WholeParameters all{{"weight", whole(weight)}};
  if (bias.defined())
    all.emplace("bias", whole(bias));
  return all;
}

// Each stack gives runs of elements of its own, since its outputs follow those of the stack before.
TensorPieces ColumnParallelLinearImpl::pieces() const {
  require_own_parts();
  const int64_t of_stack = outputs_ / options_.stacks;
  const OwnRows rows = own_rows(of_stack, group_);
  TensorPieces all;
  for (const auto& item : named_parameters()) {
    Int64s shape = item.value().sizes().vec();
    shape[0] = outputs_;
    TensorPiece piece{.name = item.key(), .shape = shape, .elements = {}, .tensor = item.value()};
    for (const int64_t stack : indices_below(options_.stacks))
      for (const ElementRun& run :
           slice_elements(shape, 0, stack * of_stack + rows.begin, rows.length))
        piece.elements.push_back(run);
    all.push_back(std::move(piece));
  }
  return all;
}

// All ranks construct it together, from the same whole layer.
RowParallelLinearImpl::RowParallelLinearImpl(const torch::nn::Linear& whole,
                                             ProcessGroup group,
                                             RowOptions options)
    : DividedLayer("row_parallel", std::move(group)),
      options_(options),
      inputs_(whole->weight.size(1)) {
  const std::string tied = wrong_tie("row_parallel", *whole, whole->weight, group_);
  const std::string uneven = wrong_division("row_parallel", "inputs", inputs_, group_);
  require_agreement(group_,
                    "row_parallel",
                    tied.empty() ? uneven : tied,
                    layer_terms(whole, options_.sequence_dim));
  const bool trained = whole->weight.requires_grad();
  weight =
      register_parameter("weight", own_part(whole->weight.detach(), group_, 1).clone(), trained);
  remember_cut(*whole, whole->weight, weight);
  bias = register_parameter("bias",
                            whole->bias.defined() ? whole->bias.detach().clone() : Tensor(),
                            whole->bias.defined() && whole->bias.requires_grad());
  if (group_.size() > 1)
    optim::mark_layer_parts({weight}, group_.job_ranks());
}

// Whole weights on each rank would be summed as parts.
void RowParallelLinearImpl::require_own_part() const {
  require_part("weight", weight, 1, inputs_ / group_.size());
}

// The bias comes after the sum, so once. Ranks that add it to other tokens have other gradients of
// it.
Tensor RowParallelLinearImpl::forward(const Tensor& x) {
  require_own_part();
  begin_forward();
  const Tensor part = at::linear(x, weight);
  if (!options_.sequence_dim) {
    const Tensor sum = reduce_from_group(part, group_);
    return bias.defined() ? sum + bias : sum;
  }
  const Tensor sum = reduce_scatter_sequence(part, group_, *options_.sequence_dim);
  return bias.defined() ? sum + copy_to_group(bias, group_) : sum;
}

// All ranks call it together. The bias is whole on every rank, so it needs no gather.
WholeParameters RowParallelLinearImpl::gather_parameters() const {
  require_own_part();
  WholeParameters all{{"weight", gathered(weight.detach(), group_, 1)}};
  if (bias.defined())
    all.emplace("bias", bias.detach().clone());
  return all;
}

TensorPieces RowParallelLinearImpl::pieces() const {
  require_own_part();
  const int64_t own = weight.size(1);
  TensorPieces all{
      slice_piece("weight", {weight.size(0), inputs_}, 1, own * group_.rank(), weight)};
  if (bias.defined())
    all.push_back(whole_piece("bias", bias));
  return all;
}

ColumnParallelLinear column_parallel(const torch::nn::Linear& whole,
                                     ProcessGroup group,
                                     ColumnOptions options) {
  return ColumnParallelLinear(whole, std::move(group), options);
}

RowParallelLinear row_parallel(const torch::nn::Linear& whole,
                               ProcessGroup group,
                               RowOptions options) {
  return RowParallelLinear(whole, std::move(group), options);
}

}  // namespace muster
