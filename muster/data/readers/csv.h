// Tables of numbers as text: comma-separated values, plain or gzip.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/data/dataset.h"
#include "muster/data/readers/csv_text.h"

namespace muster {

struct CsvOptions {
  CsvFormat format = {};
  std::vector<CsvColumn> features = {};  // by name or number, in this order; empty: all but the label
  std::optional<CsvColumn> label = {};   // read_csv_dataset: without it, the last column
  // The labels are classes: whole numbers, which become int64. Otherwise float32, as the features.
  bool classes = true;
  uint64_t max_bytes = uint64_t{1} << 32;  // of the file, unpacked
};

// The features alone. Shapes: [N, columns] float32.
// Throws: io when the file cannot be read; invalid_argument naming file, line and column of what is not a
// number, and the columns there are when one that is asked for is not there.
at::Tensor read_csv(const std::string& path, const CsvOptions& options = {});

// Shapes: features [N, columns] float32, labels [N].
// Throws: as above; invalid_argument naming file and row where a class is no whole number.
TensorDataset read_csv_dataset(const std::string& path, const CsvOptions& options = {});

}  // namespace muster
