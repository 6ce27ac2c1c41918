// MNIST and every data set in its format (Fashion-MNIST, KMNIST, ...): four IDX files in a folder.
#pragma once

#include <cstdint>
#include <string>

#include "muster/data/dataset.h"

namespace muster {

struct MnistOptions {
  int64_t num_classes = 10;       // a label beyond is an error
  uint64_t max_bytes = 1U << 30;  // of one file, unpacked
};

// Reads {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, plain or `.gz`; the spelling with
// a dot (train-images.idx3-ubyte) works too.
// Shapes: features [N, 1, rows, columns] (MNIST: 28, 28) float32 in 0..1; labels [N] int64.
// Throws: io when a file is absent or cannot be read; invalid_argument naming the file when it is of another
// kind, cut short, too long, or does not fit the others.
DatasetSplit read_mnist(const std::string& folder, const MnistOptions& options = {});

}  // namespace muster
