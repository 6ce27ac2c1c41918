// Parses text with separators row by row, and keeps views into it: a field is copied only where it
// is used. A row may span lines, by quotes, so lines are counted for messages. The constructor
// reads the first row, and decides whether it is a header.
#include "muster/data/readers/csv_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/refusal.h"

namespace muster {

namespace {

// The whole text must be a number; a sign + is allowed, which from_chars refuses.
std::optional<double> csv_number(std::string_view text) {
  if (text.starts_with('+'))
    text.remove_prefix(1);
  return parse_as<double>(text);
}

// A missing field is neither number nor text, so it does not decide about a header.
bool is_number(std::string_view text) {
  return !is_missing_in_csv(text) && csv_number(text);
}

bool is_text(std::string_view text) {
  return !is_missing_in_csv(text) && !csv_number(text);
}

// Whether the fields are 0, 1, 2, …, perhaps behind an unnamed index. So pandas names columns
// without names.
bool are_counted(const Strings& fields) {
  const size_t begin = fields[0].empty() ? 1 : 0;
  if (begin == fields.size())
    return false;
  for (size_t i = begin; i < fields.size(); ++i)
    if (fields[i] != std::to_string(i - begin))
      return false;
  return true;
}

CsvText::ClassNumbers numbers_of(const Strings& classes) {
  CsvText::ClassNumbers numbers;
  for (const auto& name : classes)
    if (!numbers.emplace(name, numbers.size()).second)
      throw invalid_argument("csv: expected each of .class_names once, got '",
                             escaped(name),
                             "' twice; a label is its text's place in the list");
  return numbers;
}

}  // namespace

// Source: the list of pandas.read_csv, na_values.
bool is_missing_in_csv(std::string_view text) {
  static constexpr std::array<std::string_view, 19> kMissing = {"",
                                                                "NA",
                                                                "N/A",
                                                                "NaN",
                                                                "nan",
                                                                "-NaN",
                                                                "-nan",
                                                                "null",
                                                                "NULL",
                                                                "#N/A",
                                                                "#NA",
                                                                "n/a",
                                                                "<NA>",
                                                                "None",
                                                                "#N/A N/A",
                                                                "-1.#IND",
                                                                "1.#IND",
                                                                "1.#QNAN",
                                                                "-1.#QNAN"};
  return contains(kMissing, text);
}

// Only a quoted field can have doubled quotes to undo.
std::string CsvText::Field::value() const {
  std::string out(text);
  if (!is_quoted)
    return out;
  for (size_t at = out.find("\"\""); at != npos; at = out.find("\"\"", at + 1))
    out.erase(at, 1);
  return out;
}

// The views point into `text`, which the caller keeps alive.
CsvText::CsvText(std::string_view text,
                 const std::string& name,
                 const CsvFormat& format,
                 bool by_name)
    : text_(text), name_(name), format_(format) {
  text_ = without_byte_order_mark(text_);
  const size_t end = std::min(text_.find('\n'), text_.size());
  if (trim(text_.substr(0, end)).empty())
    refuse(1, "columns", text_.empty() ? "an empty file" : "an empty line");
  Row row;
  take_next(row);
  first_ = mapped(row.fields, [&](const Field& field) { return field.value(); });
  has_header_ = format_.header ? *format_.header : by_name || find_header();
}

// See CsvFormat::header.
bool CsvText::find_header() const {
  const bool has_numbers = any_of(first_, is_number);
  const bool has_texts = any_of(first_, is_text);
  const bool has_missing = any_of(first_, is_missing_in_csv);
  constexpr auto kExpected = "a first line that is clearly a header or none; set .header";
  if (!has_texts) {
    if (are_counted(first_))
      refuse(1,
             kExpected,
             "what may be the numbers that pandas gives columns without names, or a row");
    return false;
  }
  // A row whose numbers are missing looks like a header over an index.
  if (!has_numbers && !has_missing)
    return true;
  if (has_number_below_text() || (!has_numbers && has_index()))
    return true;
  refuse(1, kExpected, has_numbers ? "numbers and texts" : "texts and missing values");
}

// Whether the second row has a number where the first has a text.
bool CsvText::has_number_below_text() const {
  Row row;
  take_next(row);
  if (!take_next(row) || row.fields.size() != first_.size())
    return false;
  for (const size_t i : indices_of(first_))
    if (is_text(first_[i]) && is_number(row.fields[i].value()))
      return true;
  return false;
}

// Whether the first column has no name and counts the rows from 0, as pandas writes an index.
bool CsvText::has_index() const {
  std::string expected;
  int64_t next = 0;
  bool counts = true;
  for_each_row([&](const Row& row) {
    counts = counts && row.fields[0].value() == expected;
    expected = std::to_string(next++);
  });
  return counts && next > 1;
}

// A number is a place from 0. A name needs a header that has it once.
int64_t CsvText::find(const CsvColumn& column) const {
  if (const auto* number = std::get_if<int64_t>(&column)) {
    if (*number >= 0 && *number < columns())
      return *number;
    refuse_column(cat("a column from 0 to ", columns() - 1),
                  cat(*number, hint_at_separator()),
                  "correct the number");
  }
  const auto& wanted = std::get<std::string>(column);
  const auto name = in_quotes(escaped(wanted));
  if (!has_header_)
    refuse_column("a header with names of columns",
                  cat(name, " and no header"),
                  "give the column's number, from 0");
  const auto found = std::ranges::find(first_, wanted);
  if (found == first_.end())
    refuse_column(cat("one of the columns ", columns_text()),
                  cat(name, hint_at_separator()),
                  "correct the name");
  if (std::find(found + 1, first_.end(), wanted) != first_.end())
    refuse_column(cat("one column ", name), "several", "give its number, from 0");
  return found - first_.begin();
}

// A table that is read with the wrong separator seems to have one column.
std::string CsvText::hint_at_separator() const {
  const std::string_view line = text_.substr(0, text_.find('\n'));
  const size_t at = line.find_first_of(",;\t|");
  if (first_.size() != 1 || at == npos || line[at] == format_.separator)
    return "";
  const std::string other = line[at] == '\t' ? "\\t" : std::string(1, line[at]);
  return cat(" (the first line has one column and a '",
             other,
             "': if that divides the columns, set .format.separator to it)");
}

void CsvText::refuse_column(const std::string& expected,
                            const std::string& got,
                            const char* next) const {
  FileRefusal{"csv"}(name_, expected, got, next);
}

// Takes the field whose quote is at `from`, which becomes the place behind the closing one. A
// doubled quote stands for one in the field.
CsvText::Field CsvText::take_quoted(size_t* from, int64_t line) const {
  const size_t begin = *from + 1;
  size_t close = text_.find('"', begin);
  while (close != npos && text_.substr(close + 1).starts_with('"'))
    close = text_.find('"', close + 2);
  if (close == npos)
    refuse(line, "a quote that ends", "one that does not");
  *from = close + 1;
  return {.text = text_.substr(begin, close - begin), .is_quoted = true};
}

// Blanks before a quote are skipped; those around a plain field are trimmed from it. Behind a
// closing quote nothing but blanks may come before the separator.
bool CsvText::take_next(Row& row) const {
  const std::string_view passed = text_.substr(row.begin, row.end - row.begin);
  row.line += std::ranges::count(passed, '\n');
  row.begin = row.end;
  row.fields.clear();
  if (row.begin == text_.size())
    return false;
  for (size_t at = row.begin;;) {
    const size_t begin = std::min(text_.find_first_not_of(' ', at), text_.size());
    const bool is_quoted = begin < text_.size() && text_[begin] == '"';
    size_t behind = begin;
    if (is_quoted)
      row.fields.push_back(take_quoted(&behind, row.line));
    const char ends[] = {format_.separator, '\n'};
    const size_t end = std::min(
        text_.find_first_of(std::string_view(ends, 2), is_quoted ? behind : at), text_.size());
    if (!is_quoted) {
      row.fields.push_back({.text = trim(text_.substr(at, end - at))});
    } else if (!trim(text_.substr(behind, end - behind)).empty()) {
      refuse(row.line,
             "a separator after a quote",
             in_quotes(escaped(text_.substr(behind - 1, end - behind + 1))));
    }
    at = end + 1;
    if (end == text_.size() || text_[end] == '\n') {
      row.end = std::min(at, text_.size());
      return true;
    }
  }
}

// The loop ends where only blank lines are left. Every row has as many fields as the first.
void CsvText::for_each_row(const std::function<void(const Row&)>& use) const {
  for (Row row; text_.find_first_not_of(" \t\r\n", row.end) != npos;) {
    take_next(row);
    if (row.fields.size() != first_.size())
      refuse(row.line, plural(first_.size(), "column"), plural(row.fields.size(), "column"));
    if (row.begin > 0 || !has_header_)
      use(row);
  }
}

std::string CsvText::columns_text() const {
  constexpr size_t kMostShown = 20;
  const auto names = mapped(first_, [](const auto& field) { return escaped(field); });
  return join_first(names, ", ", kMostShown);
}

std::string CsvText::column_text(int64_t column) const {
  return cat("column ", column, has_header_ ? cat(" (", escaped(first_[column]), ")") : "");
}

// A missing field takes the value `missing`, and is refused without one.
double CsvText::value_of(const Row& row, int64_t column, std::optional<double> missing) const {
  const std::string field = row.fields[column].value();
  if (is_missing_in_csv(field) && missing)
    return *missing;
  const auto value = csv_number(field);
  if (value && std::abs(*value) <= std::numeric_limits<float>::max())
    return *value;
  const bool is_too_large = value && std::isfinite(*value);
  std::string got = field.empty() ? "nothing" : in_quotes(escaped(field));
  if (is_missing_in_csv(field))
    got +=
        format_.missing ? " (.missing fills no labels)" : " (.missing gives such fields a value)";
  refuse(row.line,
         cat(is_too_large ? "a number that a float can hold in " : "a number in ",
             column_text(column)),
         got);
}

Doubles CsvText::values(const Int64s& columns,
                        std::optional<int64_t> label,
                        const Strings& classes) const {
  const ClassNumbers numbers = numbers_of(classes);
  Doubles found;
  for_each_row([&](const Row& row) {
    for (const int64_t column : columns)
      found.push_back(value_of(row, column, format_.missing));
    if (label)
      found.push_back(classes.empty() ? value_of(row, *label, std::nullopt)
                                      : class_of(row, *label, numbers));
  });
  return found;
}

// A class is the place of its name in the caller's list, so its number does not depend on the file.
double CsvText::class_of(const Row& row, int64_t column, const ClassNumbers& numbers) const {
  const std::string name = row.fields[column].value();
  if (const double* number = value_at(numbers, name))
    return *number;
  auto got = in_quotes(escaped(name));
  if (is_missing_in_csv(name))
    got += " (a missing one; if it is a class, put it into .class_names)";
  refuse(row.line, cat("one of the ", numbers.size(), " classes in ", column_text(column)), got);
}

Strings CsvText::texts(int64_t column) const {
  Strings found;
  for_each_row([&](const Row& row) { found.push_back(row.fields[column].value()); });
  return found;
}

void CsvText::refuse(int64_t line, const std::string& expected, const std::string& got) const {
  throw invalid_argument("csv: expected ",
                         expected,
                         " in '",
                         name_,
                         "' line ",
                         line,
                         ", got ",
                         got,
                         hint_at_separator(),
                         "; correct the file or the options");
}

}  // namespace muster
