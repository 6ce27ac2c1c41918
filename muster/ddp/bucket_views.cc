// A lent gradient is a tensor in a storage of its own over the bucket's memory. Who keeps one over
// zero_grad() shares that storage, so that giving the storage other memory moves all of them away.
#include "muster/ddp/bucket_views.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/RefcountedDeleter.h>
#include <c10/core/Storage.h>

#include "muster/base/indices_of.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

// A pointer to the memory of `tensor`, which lives as long as the pointer. LibTorch counts such
// pointers itself, so that it takes a storage with one for an alias of the tensor's: the Reducer
// does not copy between them.
c10::DataPtr pointer_to(const Tensor& tensor) {
  c10::maybeApplyRefcountedDeleter(tensor.storage());
  void* const counted = tensor.storage().data_ptr().get_context();
  static_cast<c10::RefcountedDeleterContext*>(counted)->refcount++;
  return {tensor.mutable_data_ptr(), counted, &c10::refcounted_deleter, tensor.device()};
}

Tensor plain_over(const Tensor& view) {
  const size_t bytes =
      at::detail::computeStorageNbytes(view.sizes(), view.strides(), view.itemsize());
  const c10::Storage storage(c10::Storage::use_byte_size_t(),
                             bytes,
                             pointer_to(view),
                             /*allocator=*/nullptr,
                             /*resizable=*/false);
  return at::empty({0}, view.options()).set_(storage, 0, view.sizes(), view.strides());
}

bool same_place(const Tensor& one, const Tensor& other) {
  if (!one.defined() || one.const_data_ptr() != other.const_data_ptr())
    return false;
  return one.sizes() == other.sizes() && one.strides() == other.strides() &&
         one.scalar_type() == other.scalar_type();
}

bool same_storage(const Tensor& one, const Tensor& other) {
  return one.defined() && one.has_storage() &&
         one.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl();
}

// Gives the storage, and so all tensors in it, the memory of a copy.
void move_away(const Tensor& plain) {
  plain.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(pointer_to(plain.clone()));
}

}  // namespace

void BucketViews::lend(const Tensors& parameters) {
  const NoGradGuard no_grad;
  for (const size_t i : indices_of(parameters)) {
    Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined() || !gradient.is_view())
      continue;
    if (!same_place(lent_[i], gradient))
      lent_[i] = plain_over(gradient);
    gradient = lent_[i].variable_data();
  }
}

void BucketViews::take_back(const Tensors& parameters) {
  const NoGradGuard no_grad;
  for (const size_t i : indices_of(parameters)) {
    Tensor& lent = lent_[i];
    if (!lent.defined() || same_storage(parameters[i].grad(), lent))
      continue;
    if (lent.storage().use_count() == 1)
      continue;
    move_away(lent);
    lent = Tensor();
  }
}

}  // namespace muster
