// Maps arrays saved by numpy (numpy.save): nothing is read before it is used, so they may be larger
// than memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "muster/data/dataset.h"

namespace muster {

// Returns the array in the file's pages. Writes to the tensor stay in this process. Fortran order
// is expressed by the tensor's strides. Throws: io if the file cannot be read; invalid_argument
// naming it if it is of another kind, truncated, too long, or has anything but numbers in this
// machine's byte order.
at::Tensor read_npy(const std::string& path);

// Features [N, ...] and labels [N, ...], from one file each. Integer labels become int64.
// Throws: as above, and as TensorDataset; invalid_argument naming the file for labels of 2^63 and
// more.
TensorDataset read_npy_dataset(const std::string& features, const std::string& labels);

}  // namespace muster
