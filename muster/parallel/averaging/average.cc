// Averages tensors over a group in lots: neighbours of one type and device are copied into one flat
// tensor, so that many small tensors cost few collectives. A lot ends at 32 MB, which bounds the
// extra memory.
#include "muster/parallel/averaging/average.h"

#include <cstdint>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

// A tensor larger than this makes a lot of its own.
constexpr size_t kAverageLotBytes = size_t{32} << 20;

}  // namespace

// The lots follow from types and sizes alone, so all ranks make the same.
TensorLists lots_of(const Tensors& tensors) {
  TensorLists lots;
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    const bool fits = !lots.empty() && bytes + tensor.nbytes() <= kAverageLotBytes &&
                      lots.back()[0].scalar_type() == tensor.scalar_type() &&
                      lots.back()[0].device() == tensor.device();
    if (!fits) {
      lots.emplace_back();
      bytes = 0;
    }
    lots.back().push_back(tensor.detach());
    bytes += tensor.nbytes();
  }
  return lots;
}

// The result never shares memory with the lot, so a collective may write into it.
Tensor flat_of(const Tensors& lot) {
  const NoGradGuard no_grad;
  if (lot.size() == 1)
    return lot[0].detach().clone(at::MemoryFormat::Contiguous).view(-1);
  Tensors flats = mapped(lot, [&](const Tensor& tensor) { return tensor.detach().reshape(-1); });
  return at::cat(flats);
}

// Each tensor is written in place, so whoever holds it sees the new values.
void copy_from_flat(const Tensor& flat, const Tensors& lot) {
  const NoGradGuard no_grad;
  int64_t at = 0;
  for (const Tensor& tensor : lot) {
    tensor.detach().copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

// All ranks of the group call it together, with tensors of the same types and sizes.
void average_over(ProcessGroup& group, const Tensors& tensors) {
  if (group.size() == 1)
    return;
  for (const Tensors& lot : lots_of(tensors)) {
    const Tensor flat = flat_of(lot);
    group.all_reduce(flat);
    flat.div_(group.size());
    copy_from_flat(flat, lot);
  }
}

// Counters and other whole numbers have no mean.
Tensors averaged_ones(const Tensors& tensors) {
  return filtered(tensors, [&](const Tensor& tensor) {
    return tensor.is_floating_point() || tensor.is_complex();
  });
}

}  // namespace muster
