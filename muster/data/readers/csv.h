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
  CsvFormat format{};
  std::vector<CsvColumn> features =
      {};                            // by name or number, in this order; empty: all but the label
  std::optional<CsvColumn> label{};  // for read_csv_dataset; default: the last column
  // Labels are class numbers, which become int64. If false they become float32, like the features.
  bool classes = true;
  // The texts of labels that are no numbers; a label is its text's place in this list.
  // csv_classes() makes one.
  std::vector<std::string> class_names{};
  uint64_t max_bytes = uint64_t{1} << 32;  // of the file, uncompressed
};

// Reads only the features.
// Shapes: [N, columns] float32.
// Throws: io if the file cannot be read; invalid_argument naming file, line and column of a value
// that is not a number that fits in a float, or the known columns if one is missing, or a first
// line that could be a header and could be a row (CsvFormat::header).
at::Tensor read_csv(const std::string& path, const CsvOptions& options = {});

// Shapes: features [N, columns] float32, labels [N].
// Throws: as above; invalid_argument naming file and row of a class that is not an integer, or line
// and column of one that is not among `class_names`.
TensorDataset read_csv_dataset(const std::string& path, const CsvOptions& options = {});

// The different texts of the label column, sorted, for CsvOptions::class_names; a missing label is
// no class. Give all files of a data set the list of one. Throws: as read_csv.
std::vector<std::string> csv_classes(const std::string& path, const CsvOptions& options = {});

}  // namespace muster
