// A tensor is plain where its memory can be moved as it is: contiguous, and with no conjugation or
// negation left for later.
#include "muster/comm/host/plain_tensor.h"

#include <cstdint>
#include <string>

#include <c10/util/accumulate.h>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

bool is_plain(const Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

Tensor plain(const Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg().contiguous();
}

void copy_plain(const Tensor& to, const Tensor& from) {
  to.copy_(is_plain(to) ? from : from.to(to.device()));
}

void expect_dense(const char* operation, const Tensor& tensor) {
  if (tensor.defined() && tensor.layout() == kStrided)
    return;
  const std::string got = tensor.defined() ? c10::str(tensor.layout()) : "an undefined one";
  throw invalid_argument(operation, ": expected a dense tensor, got ", got);
}

// Backends move bytes: they would not see that two types of one length are mixed.
void expect_one_type(const char* operation, const Tensor& one, const Tensor& other) {
  if (one.scalar_type() == other.scalar_type())
    return;
  throw invalid_argument(operation,
                         ": expected tensors of one type, got ",
                         toString(one.scalar_type()),
                         " and ",
                         toString(other.scalar_type()));
}

bool is_known_everywhere(ScalarType type) {
  constexpr ScalarType kKnown[] = {kFloat, kDouble, kHalf, kBFloat16, kChar, kByte, kInt, kLong};
  return contains(kKnown, type);
}

// The strides of a tensor without elements, and those of dimensions of 1, say nothing: they are
// given anew, since a view as bytes looks at them.
Tensor as_bytes(const Tensor& plain) {
  const int64_t rows = plain.dim() == 0 ? 1 : plain.size(0);
  const int64_t columns = plain.dim() == 0 ? 1 : c10::multiply_integers(plain.sizes().slice(1));
  return plain.detach().as_strided({rows, columns}, {columns, 1}).view(kByte);
}

}  // namespace muster
