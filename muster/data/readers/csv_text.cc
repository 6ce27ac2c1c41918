#include "muster/data/readers/csv_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

std::optional<double> csv_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The line that begins at `from`, without its end; `from` becomes the next one's beginning.
std::string_view take_csv_line(std::string_view text, size_t* from) {
  const size_t end = std::min(text.find('\n', *from), text.size());
  std::string_view line = text.substr(*from, end - *from);
  *from = end + 1;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

CsvText::CsvText(std::string_view text, const std::string& name, const CsvFormat& format)
    : text_(text), name_(name), format_(format) {
  if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // as some programs mark UTF-8
  size_t from = 0;
  const std::string_view line = take_csv_line(text_, &from);
  if (trim(line).empty()) refuse(1, "columns", text_.empty() ? "an empty file" : "an empty line");
  split_line(line, 1, &first_);
  has_header_ = format_.header.value_or(std::any_of(first_.begin(), first_.end(), [](std::string_view field) {
    return !field.empty() && !csv_number(field);
  }));
}

int64_t CsvText::find(const CsvColumn& column) const {
  if (const auto* number = std::get_if<int64_t>(&column)) {
    if (*number >= 0 && *number < columns()) return *number;
    throw Error(ErrorCode::invalid_argument, cat("csv: expected a column from 0 to ", columns() - 1, " of '",
                                                 name_, "', got ", *number, "; correct the number"));
  }
  const auto& wanted = std::get<std::string>(column);
  const auto found = std::find(first_.begin(), first_.end(), wanted);
  if (has_header_ && found != first_.end()) return found - first_.begin();
  constexpr size_t kMostShown = 20;
  std::vector<std::string> names;
  for (const std::string_view field : first_) names.push_back(escaped(field));
  throw Error(ErrorCode::invalid_argument,
              cat("csv: expected ",
                  has_header_ ? cat("one of the columns ", join_first(names, ", ", kMostShown))
                              : std::string("a header with names of columns"),
                  " in '", name_, "', got '", escaped(wanted), "'",
                  has_header_ ? "; correct the name" : " and no header; give the column's number, from 0"));
}

void CsvText::split_line(std::string_view line, int64_t number, Fields* fields) const {
  fields->clear();
  for (size_t from = 0;;) {
    const size_t begin = std::min(line.find_first_not_of(' ', from), line.size());
    size_t end = 0;
    if (begin < line.size() && line[begin] == '"') {
      const size_t close = line.find('"', begin + 1);
      if (close == std::string_view::npos)
        refuse(number, "a quote that ends in its line", "one that does not");
      fields->push_back(line.substr(begin + 1, close - begin - 1));
      end = std::min(line.find(format_.separator, close), line.size());
      if (!trim(line.substr(close + 1, end - close - 1)).empty())
        refuse(number, "a separator after a quote", cat("'", escaped(line.substr(close)), "'"));
    } else {
      end = std::min(line.find(format_.separator, from), line.size());
      fields->push_back(trim(line.substr(from, end - from)));
    }
    if (end == line.size()) return;
    from = end + 1;
  }
}

double CsvText::value_of(std::string_view field, int64_t line, int64_t column) const {
  if (field.empty() && format_.missing) return *format_.missing;
  const auto value = csv_number(field);
  if (!value || !std::isfinite(*value))
    refuse(line,
           cat("a number in column ", column, has_header_ ? cat(" (", escaped(first_[column]), ")") : ""),
           field.empty() ? "nothing" : cat("'", escaped(field), "'"));
  return *value;
}

std::vector<double> CsvText::values(const std::vector<int64_t>& columns) const {
  std::vector<double> found;
  Fields fields;
  size_t from = 0;
  if (has_header_) take_csv_line(text_, &from);
  for (int64_t number = has_header_ ? 2 : 1; from < text_.size(); ++number) {
    const std::string_view line = take_csv_line(text_, &from);
    if (trim(line).empty() && from >= text_.size()) break;  // the file's end
    split_line(line, number, &fields);
    if (fields.size() != first_.size())
      refuse(number, plural(first_.size(), "column"), plural(fields.size(), "column"));
    for (const int64_t column : columns)
      found.push_back(value_of(fields[static_cast<size_t>(column)], number, column));
  }
  return found;
}

void CsvText::refuse(int64_t line, const std::string& expected, const std::string& got) const {
  throw Error(ErrorCode::invalid_argument, cat("csv: expected ", expected, " in '", name_, "' line ", line,
                                               ", got ", got, "; correct the file or the options"));
}

}  // namespace muster
