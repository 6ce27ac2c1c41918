// A name is compared with one row after the other. What the stars of one side stand for is put in
// place of those of the other side.
#include "muster/checkpoint/weight_names.h"

#include <algorithm>
#include <string_view>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

using Stars = Strings;  // what the stars of a pattern stand for

// Whether the whole text fits the pattern; `stars` grows by what its stars stand for.
bool fits_pattern(std::string_view pattern, std::string_view text, Stars& stars) {
  const size_t star = pattern.find('*');
  if (star == npos)
    return pattern == text;
  if (!text.starts_with(pattern.substr(0, star)))
    return false;
  text.remove_prefix(star);
  for (size_t n = 1; n <= text.size() && text[n - 1] != '.'; ++n) {
    stars.emplace_back(text.substr(0, n));
    if (fits_pattern(pattern.substr(star + 1), text.substr(n), stars))
      return true;
    stars.pop_back();
  }
  return false;
}

std::string with_stars(const std::string& pattern, const Stars& stars) {
  std::string name;
  size_t next = 0;
  for (const char c : pattern) {
    if (c == '*')
      name += stars.at(next++);
    else
      name += c;
  }
  return name;
}

// The patterns that a pattern with braces stands for.
Strings alternatives(const std::string& pattern) {
  const size_t open = pattern.find('{'), close = pattern.find('}');
  if (open == npos)
    return {pattern};
  return mapped(split(pattern.substr(open + 1, close - open - 1), ','), [&](const auto& middle) {
    return cat(pattern.substr(0, open), middle, pattern.substr(close + 1));
  });
}

bool has_one_list(const std::string& pattern) {
  const auto opened = std::ranges::count(pattern, '{'), closed = std::ranges::count(pattern, '}');
  if (opened == 0 && closed == 0)
    return true;
  const Strings each = split(pattern, '{');
  return opened == 1 && closed == 1 && contains(each[1], '}');
}

size_t number_of_stars(const std::string& pattern) {
  return std::ranges::count(pattern, '*');
}

WeightPlace place_of_row(const WeightRow& row,
                         const Strings& patterns,
                         size_t part,
                         const Stars& stars) {
  WeightPlace place{.model = with_stars(row.model, stars), .part = part, .form = row.form};
  place.parts = mapped(patterns, [&](const auto& pattern) { return with_stars(pattern, stars); });
  return place;
}

std::optional<WeightPlace> place_by_rows(const WeightNames& names, const std::string& in_file) {
  for (const WeightRow& row : names.rows) {
    const Strings patterns = alternatives(row.file);
    for (const size_t part : indices_of(patterns)) {
      Stars stars;
      if (fits_pattern(patterns[part], in_file, stars))
        return place_of_row(row, patterns, part, stars);
    }
  }
  return std::nullopt;
}

}  // namespace

void check_weight_names(const WeightNames& names) {
  for (const WeightRow& row : names.rows) {
    const bool has_same_stars =
        row.model.empty() || all_of(alternatives(row.file), [&](const auto& pattern) {
          return number_of_stars(pattern) == number_of_stars(row.model);
        });
    const bool has_plain_model = row.model.find_first_of("{}") == npos;
    if (!row.file.empty() && has_one_list(row.file) && has_plain_model && has_same_stars)
      continue;
    throw invalid_argument(
        "weight names: expected rows with as many * on both sides, and one list in braces "
        "at most, in the file's name, got {'",
        row.file,
        "', '",
        row.model,
        "'}; correct the row");
  }
}

// The prefix may be part of a row's own name, so the whole name is tried first.
std::optional<WeightPlace> weight_in_model(const WeightNames& names, const std::string& in_file) {
  if (auto place = place_by_rows(names, in_file))
    return place;
  if (names.prefix.empty() || !in_file.starts_with(names.prefix))
    return std::nullopt;
  std::string rest = in_file.substr(names.prefix.size());
  if (auto place = place_by_rows(names, rest))
    return place;
  return WeightPlace{.model = rest, .parts = {rest}};
}

WeightPlace weight_in_file(const WeightNames& names, const std::string& in_model) {
  for (const WeightRow& row : names.rows) {
    Stars stars;
    if (!row.model.empty() && fits_pattern(row.model, in_model, stars))
      return place_of_row(row, alternatives(row.file), 0, stars);
  }
  return {.model = in_model, .parts = {in_model}};
}

}  // namespace muster
