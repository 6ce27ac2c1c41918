// Tables as tensors. csv_text.cc parses the text and gives the values of some columns row by row,
// as doubles; here they become features and labels. The label is asked for as the last column, so
// its values end the rows.
#include "muster/data/readers/csv.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/data/gzip.h"

namespace muster {

namespace {

constexpr double kMostWhole = 9007199254740992;  // 2^53, which 2^53 + 1 is read as, too

// pandas and R write the rows' numbers into a first column without a name. A table that is sorted
// by class would be learnt from them.
void check_no_index(const CsvText& text, const std::string& path) {
  if (text.has_header() && text.columns() > 1 && text.name_of(0).empty())
    throw invalid_argument(
        "csv: expected a name for column 0 in '",
        path,
        "', got none, as pandas names its index; list the columns to read as .features, or "
        "write the table without it (index=False)");
}

// The features are the columns asked for, or else all but the label.
Int64s columns_asked(const CsvText& text,
                     const CsvOptions& options,
                     std::optional<int64_t> label,
                     const std::string& path) {
  Int64s columns =
      mapped(options.features, [&](const CsvColumn& column) { return text.find(column); });
  if (!columns.empty())
    return columns;
  if (label != 0)
    check_no_index(text, path);
  for (int64_t column = 0; column < text.columns(); ++column)
    if (column != label)
      columns.push_back(column);
  return columns;
}

// A column asked for by name means that the file has a header.
bool asks_by_name(const CsvOptions& options) {
  const auto is_name = [](const CsvColumn& column) {
    return std::holds_alternative<std::string>(column);
  };
  return (options.label && is_name(*options.label)) ||
         std::any_of(options.features.begin(), options.features.end(), is_name);
}

// The last column is the label where none is asked for.
int64_t label_column(const CsvText& text, const CsvOptions& options) {
  return options.label ? text.find(*options.label) : text.columns() - 1;
}

// Returns `count` columns from `first` on, of rows of `width` values.
Tensor floats_of(const Doubles& values, int64_t width, int64_t first, int64_t count) {
  const int64_t rows = width == 0 ? 0 : std::ssize(values) / width;
  auto tensor = at::empty({rows, count}, at::kFloat);
  auto* to = tensor.mutable_data_ptr<float>();
  for (int64_t row = 0; row < rows; ++row)
    to = std::copy_n(values.begin() + row * width + first, count, to);
  return tensor;
}

// The labels are the last of each `width` values. A class must be a whole number that a double
// holds exactly.
Tensor classes_of(const Doubles& values, int64_t width, const std::string& path) {
  auto tensor = at::empty({std::ssize(values) / width}, at::kLong);
  auto* to = tensor.mutable_data_ptr<int64_t>();
  for (int64_t at = width - 1; at < std::ssize(values); at += width) {
    const bool is_whole = std::trunc(values[at]) == values[at];
    if (!is_whole || std::abs(values[at]) >= kMostWhole)
      throw invalid_argument("csv: expected whole numbers as classes, below 2^53, in '",
                             path,
                             "', got ",
                             values[at],
                             " in row ",
                             at / width,
                             "; choose another label, or set classes to false");
    *to++ = static_cast<int64_t>(values[at]);
  }
  return tensor;
}

void check_rows(const Doubles& values, const std::string& path) {
  if (!values.empty())
    return;
  throw invalid_argument("csv: expected at least one row of numbers in '",
                         path,
                         "', got none; see whether it is complete");
}

}  // namespace

// The label's column is left out, unless the features name it.
Tensor read_csv(const std::string& path, const CsvOptions& options) {
  const std::string bytes = read_data_file(path, options.max_bytes);
  const CsvText text(bytes, path, options.format, asks_by_name(options));
  const std::optional<int64_t> label =
      options.label ? std::optional(text.find(*options.label)) : std::nullopt;
  const auto columns = columns_asked(text, options, label, path);
  const auto values = text.values(columns);
  check_rows(values, path);
  const int64_t width = std::ssize(columns);
  return floats_of(values, width, 0, width);
}

TensorDataset read_csv_dataset(const std::string& path, const CsvOptions& options) {
  const std::string bytes = read_data_file(path, options.max_bytes);
  const CsvText text(bytes, path, options.format, asks_by_name(options));
  const int64_t label = label_column(text, options);
  const auto columns = columns_asked(text, options, label, path);
  const int64_t features = std::ssize(columns);
  const auto values = text.labelled_values(columns, label, options.class_names);
  check_rows(values, path);
  const int64_t width = features + 1;
  return {floats_of(values, width, 0, features),
          options.classes ? classes_of(values, width, path)
                          : floats_of(values, width, features, 1).flatten()};
}

// The list is sorted, so a class has one number in every file with these classes.
Strings csv_classes(const std::string& path, const CsvOptions& options) {
  const std::string bytes = read_data_file(path, options.max_bytes);
  const CsvText text(bytes, path, options.format, asks_by_name(options));
  const auto texts = text.texts(label_column(text, options));
  StringSet classes(texts.begin(), texts.end());
  std::erase_if(classes, is_missing_in_csv);
  return {classes.begin(), classes.end()};
}

}  // namespace muster
