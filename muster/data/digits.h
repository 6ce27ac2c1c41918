// The handwritten digits in the repository (data/digits.csv.gz): 1797 images of 8×8 pixels.
#pragma once

#include <string>

#include "muster/data/dataset.h"

namespace muster {

// Reads a CSV file, plain or gzip, with 64 pixels 0..16 and a label 0..9 per line. Rows whose
// number (from 0) is 4 modulo 5 are the test set, the others the training set. Shapes: features [N,
// 1, 8, 8] float32 in 0..1; labels [N] int64. Throws: io if the file cannot be read;
// invalid_argument naming file, line and column if it is truncated, of another kind, or has a value
// out of range.
DatasetSplit read_digits(const std::string& path);

}  // namespace muster
