// A backend moves tensors as memory: their values one after the other, conjugated and negated where
// LibTorch has left that until they are read. Inside of comm.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

// Whether the memory of a dense tensor holds its values in this form.
bool is_plain(const Tensor& tensor);

// The tensor itself where it is plain, else a copy.
Tensor plain(const Tensor& tensor);

// Copies the values of a plain tensor, also from the host to a GPU's tensor that is not plain. Only
// plain memory crosses the bus, and the rest is done on the GPU: LibTorch 2.11 gives a negated
// tensor with gaps the wrong sign there.
void copy_plain(const Tensor& to, const Tensor& from);

// Both throw invalid_argument, in the name of `operation`.
void expect_dense(const char* operation, const Tensor& tensor);
void expect_one_type(const char* operation, const Tensor& one, const Tensor& other);

// Whether every backend knows the type, to move tensors of it.
bool is_known_everywhere(ScalarType type);

// The memory of a plain tensor, of any type. Shapes: [n, …] → [n, bytes of a row]; [] → [1, bytes].
Tensor as_bytes(const Tensor& plain);

}  // namespace muster
