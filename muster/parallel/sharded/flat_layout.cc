// Parameters, one behind the other in a flat buffer, which is cut into one equal part a rank. A
// parameter may lie in several parts, and a part may hold several parameters; a piece is what both
// have in common. The end is padded, so that all parts are equally long.
#include "muster/parallel/sharded/flat_layout.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <functional>

#include "muster/base/divided_up.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/live_reducers.h"

namespace muster {

namespace {

// The memory of a parameter, or, if that has gaps, its first element.
struct ParameterMemory {
  explicit ParameterMemory(const Tensor& parameter)
      : begin(static_cast<const std::byte*>(parameter.const_data_ptr())),
        end(begin + (parameter.is_non_overlapping_and_dense() ? parameter.nbytes()
                                                              : parameter.element_size())),
        is_trained(parameter.requires_grad()) {}

  const std::byte* begin;
  const std::byte* end;
  bool is_trained;
};

// Whether two parameters, of which at least one is trained, have memory in common. Each would get
// memory of its own.
bool are_tied_by_memory(const Tensors& parameters) {
  const auto filled =
      filtered(parameters, [](const Tensor& parameter) { return parameter.numel() > 0; });
  std::vector<ParameterMemory> all(filled.begin(), filled.end());
  std::ranges::sort(all, std::less<>(), &ParameterMemory::begin);
  const auto overlap = [](const ParameterMemory& one, const ParameterMemory& next) {
    return next.begin < one.end && (next.is_trained || one.is_trained);
  };
  return std::ranges::adjacent_find(all, overlap) != all.end();
}

// Returns what is wrong with the parameters of this rank, or nothing.
std::string flat_problem(const std::string& owner,
                         const Tensors& parameters,
                         const ProcessGroup& group) {
  if (parameters.empty())
    return cat(
        owner, ": expected parameters, got none (rank ", group.job_rank(), "); give the model's");
  for (const size_t i : indices_of(parameters)) {
    const Tensor& parameter = parameters[i];
    const std::string name = cat("parameter ", i, ", ", tensor_text(parameter), ",");
    if (parameter.device() != group.device()) {
      return cat(owner,
                 ": expected parameters on ",
                 group.device().str(),
                 ", got ",
                 name,
                 " on ",
                 parameter.device().str(),
                 " (rank ",
                 group.job_rank(),
                 "); move the model to the rank's device first");
    }
    const bool is_dense = parameter.layout() == kStrided;
    if (is_dense && parameter.nbytes() <= parameter.storage().nbytes())
      continue;
    return cat(owner,
               ": expected dense parameters that are not divided yet, got ",
               name,
               is_dense ? " without memory, as a FullySharded leaves them, also one that is gone"
                        : " that is sparse",
               " (rank ",
               group.job_rank(),
               is_dense ? "); wrap each parameter once, and make the model anew to wrap it again, "
                          "with the values of a checkpoint or of whole_parameters()"
                        : "); give dense ones");
  }
  if (are_tied_by_memory(parameters)) {
    return cat(owner,
               ": expected trained parameters with memory of their own, got two over one memory, "
               "as set_data ties them (rank ",
               group.job_rank(),
               "); tie weights by register_parameter with one tensor");
  }
  return {};
}

}  // namespace

std::string wrapped_problem(const std::string& owner,
                            const Tensors& parameters,
                            const ProcessGroup& group) {
  const auto wrapped = std::ranges::find_if(parameters, LiveReducer::any_has);
  if (wrapped == parameters.end())
    return {};
  return cat(owner,
             ": expected parameters whose gradients nothing else averages, got parameter ",
             wrapped - parameters.begin(),
             ", [",
             sizes_text(*wrapped),
             "], of a model that a DistributedDataParallel wraps (rank ",
             group.job_rank(),
             "); leave the model without DistributedDataParallel, since this averages its "
             "gradients itself, or use ShardedOptimizer without .gradients");
}

// A part has at least one element, so that no collective is empty.
FlatLayout::FlatLayout(const Tensors& parameters, int ranks_) : ranks(ranks_) {
  int64_t total = 0;
  for (const Tensor& parameter : parameters) {
    shapes.push_back(parameter.sizes().vec());
    offsets.push_back(total);
    counts.push_back(parameter.numel());
    total += parameter.numel();
  }
  part = std::max<int64_t>(1, divided_up(total, ranks));
}

// It returns a view: what is written into it lies in the flat buffer.
Tensor FlatLayout::place(const Tensor& flat, size_t parameter) const {
  return flat.narrow(0, offsets[parameter], counts[parameter]).view(shapes[parameter]);
}

// It follows from the layout alone, so a rank may compute another's pieces.
FlatPieces FlatLayout::pieces(int rank) const {
  const int64_t first = part * rank;
  const int64_t last = first + part;
  FlatPieces found;
  for (const size_t i : indices_of(counts)) {
    const int64_t begin = std::max(first, offsets[i]);
    const int64_t end = std::min(last, offsets[i] + counts[i]);
    if (begin < end)
      found.push_back({.parameter = i,
                       .begin = begin - offsets[i],
                       .at = begin - first,
                       .length = end - begin});
  }
  return found;
}

// All ranks of the group call it together, and all throw or none.
void agree_on_parameters(const std::string& owner,
                         const Tensors& parameters,
                         std::string wrong,
                         Terms terms,
                         ProcessGroup& group) {
  if (wrong.empty())
    wrong = flat_problem(owner, parameters, group);
  std::string trained;
  for (const Tensor& parameter : parameters)
    trained += parameter.requires_grad() ? '1' : '0';
  terms.push_back({"trained parameters", trained});
  // Parameters that this rank refuses may have no memory to hash.
  if (wrong.empty())
    append_all(terms, terms_of("parameter", parameters));
  require_agreement(group, owner, wrong, terms);
}

// Whether a parameter is exactly that view: someone may have given it other memory since.
bool lies_at(const Tensor& parameter, const Tensor& place) {
  return parameter.storage().unsafeGetStorageImpl() == place.storage().unsafeGetStorageImpl() &&
         parameter.storage_offset() == place.storage_offset() &&
         parameter.sizes() == place.sizes() && parameter.strides() == place.strides() &&
         parameter.scalar_type() == place.scalar_type();
}

// Values may lie in other memory, but shape and device must be those of the layout.
void require_same_place(const std::string& owner,
                        const Tensor& parameter,
                        const Tensor& place,
                        const ProcessGroup& group) {
  if (parameter.sizes() == place.sizes() && parameter.device() == place.device())
    return;
  const auto kind_of = [](const Tensor& tensor) {
    return cat(tensor_text(tensor), " on ", tensor.device().str());
  };
  throw failed_precondition(
      owner,
      ": expected parameters as they were sharded, ",
      kind_of(place),
      ", got ",
      kind_of(parameter),
      " (rank ",
      group.job_rank(),
      "); load values of the same shape, and move the model before it is sharded");
}

// The parameters are views of the buffer afterwards. The padding is zero, so it has the same bits
// on all ranks.
void flatten_parameters(const FlatLayout& layout, const Tensor& flat, Tensors& parameters) {
  const NoGradGuard no_grad;
  int64_t used = 0;
  for (const size_t i : indices_of(parameters)) {
    const Tensor place = layout.place(flat, i);
    place.copy_(parameters[i]);
    parameters[i].set_data(place);
    used += layout.counts[i];
  }
  flat.narrow(0, used, layout.length() - used).zero_();
}

}  // namespace muster
