// Arrays that numpy has saved (numpy.save), mapped: nothing is read before it is used, so they may be larger
// than memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "muster/data/dataset.h"

namespace muster {

// The array, in the file's pages: what is written to the tensor stays with this process. Fortran order
// becomes a tensor whose strides say so.
// Throws: io when the file cannot be read; invalid_argument naming it when it is of another kind, cut short,
// too long, or holds other than numbers of this machine's byte order.
at::Tensor read_npy(const std::string& path);

// Features [N, ...] and labels [N, ...] from a file each. Labels that are integers become int64.
// Throws: as above, and as TensorDataset.
TensorDataset read_npy_dataset(const std::string& features, const std::string& labels);

}  // namespace muster
