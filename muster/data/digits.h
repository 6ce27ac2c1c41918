// The handwritten digits that the repository carries (data/digits.csv.gz): 1797 images of 8×8 pixels.
#pragma once

#include <string>

#include "muster/data/dataset.h"

namespace muster {

// Reads a CSV file, plain or gzip, of 64 pixels 0..16 and a label 0..9 per line. Rows whose number (from 0)
// leaves 4 when divided by 5 are the test set, the others train.
// Shapes: features [N, 1, 8, 8] float32 in 0..1; labels [N] int64.
// Throws: io when the file cannot be read; invalid_argument naming file, line and column when it is cut
// short, of another kind, or holds a value out of range.
DatasetSplit read_digits(const std::string& path);

}  // namespace muster
