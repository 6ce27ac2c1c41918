// Reads MNIST and every dataset in its format (Fashion-MNIST, KMNIST, ...): four IDX files in a
// folder.
#pragma once

#include <cstdint>
#include <string>

#include "muster/data/dataset.h"

namespace muster {

struct MnistOptions {
  int64_t num_classes = 10;       // a label at or above it is an error
  uint64_t max_bytes = 1U << 30;  // of one file, uncompressed
};

// Reads {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, plain or `.gz`; names
// with a dot (train-images.idx3-ubyte) work too. Shapes: features [N, 1, rows, columns] (MNIST: 28,
// 28) float32 in 0..1; labels [N] int64. Throws: io if a file is missing or cannot be read;
// invalid_argument naming the file if it is of another kind, truncated, too long, or does not match
// the others.
DatasetSplit read_mnist(const std::string& folder, const MnistOptions& options = {});

}  // namespace muster
