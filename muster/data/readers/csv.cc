// Tables as tensors. csv_text.cc parses the text and gives the values of some columns row by row,
// as doubles; here they become features and labels. The label is asked for as the last column, so
// its values end the rows.
#include "muster/data/readers/csv.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <variant>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/gzip.h"

namespace muster {

namespace {

constexpr double kMostWhole = 9007199254740992;  // 2^53, which 2^53 + 1 is read as, too

// A column asked for by name means that the file has a header.
bool asks_by_name(const CsvOptions& options) {
  const auto is_name = [](const CsvColumn& column) {
    return std::holds_alternative<std::string>(column);
  };
  return (options.label && is_name(*options.label)) || any_of(options.features, is_name);
}

// A file, and what is asked of it.
struct CsvTable {
  CsvTable(const std::string& file, const CsvOptions& given)
      : path(file),
        options(given),
        bytes(read_data_file(file, given.max_bytes)),
        text(bytes, file, given.format, asks_by_name(given)) {}

  // The last column is the label where none is asked for.
  int64_t label() const { return options.label ? text.find(*options.label) : text.columns() - 1; }

  // The features are the columns asked for, or else all but the label.
  Int64s columns(std::optional<int64_t> label) const {
    Int64s columns =
        mapped(options.features, [&](const CsvColumn& column) { return text.find(column); });
    if (!columns.empty())
      return columns;
    if (label != 0)
      check_no_index();
    return filtered_indices(text.columns(), [&](int64_t column) { return column != label; });
  }

  // pandas and R write the rows' numbers into a first column without a name. A table that is sorted
  // by class would be learnt from them.
  void check_no_index() const {
    if (text.has_header() && text.columns() > 1 && text.name_of(0).empty())
      throw invalid_argument(
          "csv: expected a name for column 0 in '",
          path,
          "', got none, as pandas names its index; list the columns to read as .features, or "
          "write the table without it (index=False)");
  }

  // The values as rows of so many, in the memory of the list.
  Tensor rows_of(Doubles& values, int64_t width) const {
    if (values.empty())
      throw invalid_argument("csv: expected at least one row of numbers in '",
                             path,
                             "', got none; see whether it is complete");
    return at::from_blob(values.data(), {std::ssize(values) / width, width}, kDouble);
  }

  // A class must be a whole number that a double holds exactly.
  Tensor classes_of(const Tensor& labels) const {
    const Tensor wrong = labels.trunc().ne(labels).logical_or(labels.abs().ge(kMostWhole));
    const Tensor places = wrong.nonzero();
    if (places.numel() == 0)
      return labels.to(kLong);
    const auto row = places[0].item<int64_t>();
    throw invalid_argument("csv: expected whole numbers as classes, below 2^53, in '",
                           path,
                           "', got ",
                           labels[row].item<double>(),
                           " in row ",
                           row,
                           "; choose another label, or set classes to false");
  }

  const std::string& path;
  const CsvOptions& options;
  const std::string bytes;
  const CsvText text;
};

}  // namespace

// The label's column is left out, unless the features name it.
Tensor read_csv(const std::string& path, const CsvOptions& options) {
  const CsvTable table(path, options);
  const auto columns = table.columns(options.label ? std::optional(table.label()) : std::nullopt);
  auto values = table.text.values(columns);
  return table.rows_of(values, std::ssize(columns)).to(kFloat);
}

TensorDataset read_csv_dataset(const std::string& path, const CsvOptions& options) {
  const CsvTable table(path, options);
  const int64_t label = table.label();
  const auto columns = table.columns(label);
  const int64_t features = std::ssize(columns);
  auto values = table.text.values(columns, label, options.class_names);
  const Tensor rows = table.rows_of(values, features + 1);
  const Tensor labels = rows.select(1, features);
  return {rows.narrow(1, 0, features).to(kFloat),
          options.classes ? table.classes_of(labels) : labels.to(kFloat)};
}

// The list is sorted, so a class has one number in every file with these classes.
Strings csv_classes(const std::string& path, const CsvOptions& options) {
  const CsvTable table(path, options);
  const auto texts = table.text.texts(table.label());
  StringSet classes(texts.begin(), texts.end());
  std::erase_if(classes, is_missing_in_csv);
  return {classes.begin(), classes.end()};
}

}  // namespace muster
