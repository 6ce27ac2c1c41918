// Reads tables of numbers in text form: comma-separated values, plain or gzip.
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
  std::optional<CsvColumn> label = {};   // for read_csv_dataset; default: the last column
  // Labels are class numbers, which become int64. If false they become float32, like the features.
  bool classes = true;
  uint64_t max_bytes = uint64_t{1} << 32;  // of the file, uncompressed
};

// Reads only the features.
// Shapes: [N, columns] float32.
// Throws: io if the file cannot be read; invalid_argument naming file, line and column of a value that is not
// a number, or the known columns if one is missing.
at::Tensor read_csv(const std::string& path, const CsvOptions& options = {});

// Shapes: features [N, columns] float32, labels [N].
// Throws: as above; invalid_argument naming file and row of a class that is not an integer.
TensorDataset read_csv_dataset(const std::string& path, const CsvOptions& options = {});

}  // namespace muster
