// Tensors are joined before they are sent: a message for each buffer of a model would take most of
// its time to begin. A buffer is written where it lies, since modules hold it.
#include "muster/ddp/broadcast_values.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>

#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

// Groups what at::cat takes together.
TensorLists groups_of_one_kind(const Tensors& tensors) {
  TensorLists groups;
  for (const Tensor& tensor : tensors) {
    if (tensor.numel() == 0)
      continue;
    const auto group = std::ranges::find_if(groups, [&](const auto& other) {
      return other[0].scalar_type() == tensor.scalar_type() && other[0].device() == tensor.device();
    });
    (group == groups.end() ? groups.emplace_back() : *group).push_back(tensor);
  }
  return groups;
}

// A tensor of expand() has one place for many elements, into which copy_ does not write.
void write_values(Tensor into, Tensor values) {
  for (int64_t dim = 0; dim < into.dim(); ++dim) {
    if (into.stride(dim) == 0) {
      into = into.narrow(dim, 0, 1);
      values = values.narrow(dim, 0, 1);
    }
  }
  into.copy_(values);
}

}  // namespace

void broadcast_values(const Tensors& tensors, ProcessGroup& group, int root) {
  if (group.size() == 1)
    return;
  const NoGradGuard no_grad;
  for (const auto& some : groups_of_one_kind(tensors)) {
    const Tensor all =
        at::cat(mapped(some, [](const Tensor& tensor) { return tensor.reshape({-1}); }));
    group.broadcast(all, root);
    if (group.rank() == root)
      continue;
    int64_t at = 0;
    for (const Tensor& tensor : some) {
      write_values(tensor, all.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  }
}

}  // namespace muster
