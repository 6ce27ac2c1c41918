#include "muster/comm/host/plain_tensor.h"

#include <c10/util/accumulate.h>

namespace muster {

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor plain(const at::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg().contiguous();
}

bool is_known_everywhere(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

at::Tensor as_bytes(const at::Tensor& plain) {
  const int64_t rows = plain.dim() == 0 ? 1 : plain.size(0);
  const int64_t columns = plain.dim() == 0 ? 1 : c10::multiply_integers(plain.sizes().slice(1));
  return plain.detach().view({rows, columns}).view(at::kByte);
}

}  // namespace muster
