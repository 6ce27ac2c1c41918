// CIFAR-10 and CIFAR-100 in their binary version: files of records, a label (two in CIFAR-100) and 32×32
// pixels each.
#pragma once

#include <string>

#include "muster/data/dataset.h"

namespace muster {

struct CifarOptions {
  bool bytes = false;          // features uint8 0..255, for transforms.h, in place of float32 0..1
  bool coarse_labels = false;  // CIFAR-100: the 20 kinds in place of the 100 classes
};

// Reads data_batch_1.bin … data_batch_5.bin (as many as there are) and test_batch.bin of a folder
// (cifar-10-batches-bin), plain or `.gz`.
// Shapes: features [N, 3, 32, 32]; labels [N] int64.
// Throws: io when a file is absent or cannot be read; invalid_argument naming file and record when it is of
// another kind, cut short, or has a label out of range.
DatasetSplit read_cifar10(const std::string& folder, const CifarOptions& options = {});

// The same of train.bin and test.bin (cifar-100-binary).
DatasetSplit read_cifar100(const std::string& folder, const CifarOptions& options = {});

}  // namespace muster
