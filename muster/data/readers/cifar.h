// Reads CIFAR-10 and CIFAR-100 in their binary version: records of a label (two in CIFAR-100) and
// 32×32 pixels.
#pragma once

#include <string>

#include "muster/data/dataset.h"

namespace muster {

struct CifarOptions {
  bool bytes = false;          // features uint8 0..255, for transforms.h, instead of float32 0..1
  bool coarse_labels = false;  // CIFAR-100: the 20 superclasses instead of the 100 classes
};

// Reads data_batch_1.bin … data_batch_5.bin (as many as exist) and test_batch.bin from a folder
// (cifar-10-batches-bin), plain or `.gz`.
// Shapes: features [N, 3, 32, 32]; labels [N] int64.
// Throws: io if a file is missing or cannot be read; invalid_argument naming file and record if it
// is of another kind, truncated, or has a label out of range.
DatasetSplit read_cifar10(const std::string& folder, const CifarOptions& options = {});

// The same for train.bin and test.bin (cifar-100-binary).
DatasetSplit read_cifar100(const std::string& folder, const CifarOptions& options = {});

}  // namespace muster
