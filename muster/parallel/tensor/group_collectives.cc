// Collectives as plain functions of tensors, and with_backward(), which makes an autograd function
// of two such functions. Dimensions are moved to the front for a collective, and back, since
// collectives cut and join only the first.
#include "muster/parallel/tensor/group_collectives.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "muster/base/divided_up.h"
#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

// Autograd saves values of its own kinds; this holds a function as one.
struct KeptMap : torch::CustomClassHolder {
  explicit KeptMap(TensorMap kept) : map(std::move(kept)) {}
  TensorMap map;
};

struct CollectiveFunction : torch::autograd::Function<CollectiveFunction> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x,
                        const TensorMap& forward,
                        TensorMap backward) {
    context->saved_data["backward"] =
        IValue::make_capsule(c10::make_intrusive<KeptMap>(std::move(backward)));
    return forward(x);
  }
  static Tensors backward(AutogradContext* context, Tensors gradients) {
    const auto capsule = context->saved_data["backward"].toCapsule();
    return {static_cast<KeptMap*>(capsule.get())->map(gradients[0]), Tensor(), Tensor()};
  }
};

// The dimension `dim` as [ranks, size / ranks], its ranks first.
Tensor parts_first(const Tensor& x, const ProcessGroup& group, int64_t dim) {
  return x.unflatten(dim, {group.size(), -1}).movedim(dim, 0).contiguous();
}

// The reverse: parts in ranks' order become one dimension again.
Tensor joined_along(const Tensor& parts, int64_t dim) {
  return parts.movedim(0, dim).flatten(dim, dim + 1).contiguous();
}

}  // namespace

// The graph keeps `backward`, and the thread of the backward calls it.
Tensor with_backward(const Tensor& x, const TensorMap& forward, TensorMap backward) {
  return CollectiveFunction::apply(x, forward, std::move(backward));
}

// All ranks of the group call it together, with tensors of one shape. The input stays as it is.
Tensor summed(const Tensor& x, ProcessGroup& group) {
  Tensor sum = x.detach().clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum);
  return sum;
}

// All ranks of the group call it together, with tensors of one shape.
Tensor gathered(const Tensor& x, ProcessGroup& group, int64_t dim) {
  Int64s sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  Tensor parts = at::empty(sizes, x.options());
  group.all_gather(parts, x.contiguous());
  return joined_along(parts, dim);
}

// All ranks of the group call it together, with a dimension that the ranks divide.
Tensor sum_scattered(const Tensor& x, ProcessGroup& group, int64_t dim) {
  const Tensor parts = parts_first(x, group, dim);
  Tensor mine = at::empty(parts.sizes().slice(1), x.options());
  group.reduce_scatter(mine, parts);
  return mine;
}

// It exchanges nothing: each rank has the whole tensor.
Tensor own_part(const Tensor& x, const ProcessGroup& group, int64_t dim) {
  const int64_t length = x.size(dim) / group.size();
  return x.narrow(dim, group.rank() * length, length).clone(at::MemoryFormat::Contiguous);
}

// All ranks of the group call it together, and each sends a part to every other.
Tensor exchanged(const Tensor& x, ProcessGroup& group, int64_t scatter_dim, int64_t gather_dim) {
  const Tensor parts = parts_first(x, group, scatter_dim);
  Tensor come = at::empty_like(parts);
  group.all_to_all(come, parts);
  return joined_along(come, gather_dim);
}

// The first `more` ranks have one row more.
OwnRows own_rows(int64_t total, const ProcessGroup& group) {
  const int64_t least = total / group.size();
  const int64_t more = total % group.size();
  const int64_t rank = group.rank();
  return {.begin = rank * least + std::min(rank, more), .length = least + (rank < more ? 1 : 0)};
}

// Padded to the longest, and cut after.
Tensor gathered_rows(const Tensor& mine, int64_t total, ProcessGroup& group) {
  const int64_t ranks = group.size();
  const int64_t longest = divided_up(total, ranks);
  Int64s sizes = mine.sizes().vec();
  sizes[0] = longest;
  Tensor padded = at::zeros(sizes, mine.options());
  padded.narrow(0, 0, mine.size(0)).copy_(mine.detach());
  const Tensor all = gathered(padded, group, 0);
  Tensors parts = mapped_indices(ranks, [&](int64_t rank) {
    return all.narrow(0, rank * longest, total / ranks + (rank < total % ranks ? 1 : 0));
  });
  return at::cat(parts);
}

// A backward with create_graph runs with gradients enabled, which is how it is noticed.
void refuse_second_derivative(const char* call) {
  if (!at::GradMode::is_enabled())
    return;
  throw failed_precondition(
      call, ": expected a backward without create_graph, got one with it; leave create_graph out");
}

// It returns the dimension counted from 0.
int64_t existing_dim(const char* call, const Tensor& x, const ProcessGroup& group, int64_t dim) {
  const int64_t counted = dim < 0 ? dim + x.dim() : dim;
  if (counted < 0 || counted >= x.dim()) {
    throw invalid_argument(call,
                           ": expected a dimension of [",
                           sizes_text(x),
                           "], got ",
                           dim,
                           " (rank ",
                           group.job_rank(),
                           "); count from 0, or from -1 at the end");
  }
  return counted;
}

// It looks at this rank's tensor alone, and returns the dimension counted from 0.
int64_t divisible_dim(const char* call, const Tensor& x, const ProcessGroup& group, int64_t dim) {
  const int64_t counted = existing_dim(call, x, group, dim);
  if (x.size(counted) % group.size() != 0) {
    throw invalid_argument(call,
                           ": expected a size along dimension ",
                           counted,
                           " that ",
                           plural(group.size(), "rank"),
                           " divide, got ",
                           x.size(counted),
                           " of [",
                           sizes_text(x),
                           "] (rank ",
                           group.job_rank(),
                           "); pad it, or use another group");
  }
  return counted;
}

}  // namespace muster
