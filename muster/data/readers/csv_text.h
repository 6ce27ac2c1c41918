// Parses numbers from text with separators (RFC 4180): the columns, and the values of some of them.
// Used by csv.h; knows nothing of tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

// A column by its number, from 0, or by its name in the header.
using CsvColumn = std::variant<int64_t, std::string>;

struct CsvFormat {
  char separator = ',';
  // Whether the first line names the columns. Unset: it does if a column is asked for by name, if
  // all of its fields are texts, if it has a text over a number of the second line, or if its first
  // field is empty over a column that counts the rows from 0, as pandas' index. It does not if it
  // has numbers alone. What is left is an error: texts beside numbers or missing values over
  // the same, and 0,1,2… (also 0 alone) as pandas names unnamed columns.
  std::optional<bool> header{};
  // The value of a missing field: an empty one, or what pandas takes for one (NA, NaN, null, …).
  // Unset: it is an error.
  std::optional<double> missing{};
};

// Whether a field has no value: it is empty, or what pandas takes for a missing one.
bool is_missing_in_csv(std::string_view text);

class CsvText {
 public:
  using ClassNumbers = std::unordered_map<std::string, double>;

  // `text` and `name` (used in messages) must outlive this. `by_name`: columns will be asked for by
  // name. Throws: invalid_argument if the text is empty, or does not say whether it has a header.
  CsvText(std::string_view text,
          const std::string& name,
          const CsvFormat& format,
          bool by_name = false);

  int64_t columns() const { return std::ssize(first_); }
  bool has_header() const { return has_header_; }
  // In the header; empty without one.
  std::string name_of(int64_t column) const { return has_header_ ? first_[column] : ""; }
  // Throws: invalid_argument naming the known columns, if there is no such column, or several.
  int64_t find(const CsvColumn& column) const;

  // The values of some columns, row by row; and then the label's, if there is one, which
  // CsvFormat::missing does not fill. If there are `classes`, the label is one of these texts, and
  // its value the class's number. Throws: invalid_argument naming line and column of a value that
  // is not a number that a float can hold, or a text that is no class; the line that has more or
  // fewer columns than the first; or a class that is there twice.
  Doubles values(const Int64s& columns,
                 std::optional<int64_t> label = {},
                 const Strings& classes = {}) const;

  // The texts of one column, row by row. Throws: as values.
  Strings texts(int64_t column) const;

 private:
  // One may contain quotes that are doubled, and ends of lines.
  struct Field {
    std::string_view text;
    bool is_quoted = false;
    std::string value() const;
  };
  struct Row {
    std::vector<Field> fields;
    size_t begin = 0, end = 0;  // its place in the text; the next row begins at the end
    int64_t line = 1;           // where it begins
  };

  // Goes on to the row behind this one, or to the first. False at the end of the text.
  bool take_next(Row& row) const;
  Field take_quoted(size_t* from, int64_t line) const;
  void for_each_row(const std::function<void(const Row&)>& use) const;
  bool find_header() const;
  bool has_number_below_text() const;
  bool has_index() const;
  double value_of(const Row& row, int64_t column, std::optional<double> missing) const;
  double class_of(const Row& row, int64_t column, const ClassNumbers& numbers) const;
  std::string hint_at_separator() const;
  [[noreturn]] void refuse_column(const std::string& expected,
                                  const std::string& got,
                                  const char* next) const;
  std::string columns_text() const;
  std::string column_text(int64_t column) const;
  [[noreturn]] void refuse(int64_t line, const std::string& expected, const std::string& got) const;

  std::string_view text_;
  const std::string& name_;
  CsvFormat format_;
  bool has_header_ = false;
  Strings first_;  // fields of the first line
};

}  // namespace muster
