// Parses numbers from text with separators: the columns, and the values of some of them. Used by csv.h; knows
// nothing of tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace muster {

// A column by its number, from 0, or by its name in the header.
using CsvColumn = std::variant<int64_t, std::string>;

struct CsvFormat {
  char separator = ',';
  // Whether the first line names the columns. Unset: it does if one of its fields is not a number.
  std::optional<bool> header = {};
  std::optional<double> missing = {};  // the value of empty fields; unset: they are an error
};

class CsvText {
 public:
  // `text` and `name` (used in messages) must outlive this. Throws: invalid_argument if the text is empty.
  CsvText(std::string_view text, const std::string& name, const CsvFormat& format);

  int64_t columns() const { return static_cast<int64_t>(first_.size()); }
  bool has_header() const { return has_header_; }
  // Throws: invalid_argument naming the known columns, if there is no such column.
  int64_t find(const CsvColumn& column) const;

  // The values of some columns, row by row. Throws: invalid_argument naming line and column of a value that
  // is not a finite number, or the line that has more or fewer columns than the first.
  std::vector<double> values(const std::vector<int64_t>& columns) const;

 private:
  using Fields = std::vector<std::string_view>;
  void split_line(std::string_view line, int64_t number, Fields* fields) const;
  double value_of(std::string_view field, int64_t line, int64_t column) const;
  [[noreturn]] void refuse(int64_t line, const std::string& expected, const std::string& got) const;

  std::string_view text_;
  const std::string& name_;
  CsvFormat format_;
  bool has_header_ = false;
  Fields first_;  // of the first line
};

}  // namespace muster
