// toml++ tells where a value begins and ends in the text. A number is taken from there as it is
// written, since 1e-4 is to stay 1e-4; all else is taken from what toml++ has read.
#include "muster/tasks/spec/values.h"

#include <algorithm>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/nearest.h"
#include "muster/base/units.h"
#include "muster/base/utf8.h"

namespace muster {
namespace {

constexpr size_t kMaxValueShown = 60;

// The text, or its beginning where it is long.
std::string shortened(std::string_view text) {
  const std::string_view cut = cut_text(text, kMaxValueShown);
  return cut.size() == text.size() ? std::string(text) : cat(cut, "…");
}

}  // namespace

SpecPosition position_of(const toml::source_position& at) {
  return {static_cast<int>(at.line), static_cast<int>(at.column)};
}

// The value in words, or as it is written.
std::string SpecValues::got(const toml::node& value) const {
  if (value.is_table())
    return "a table";
  if (const toml::array* const list = value.as_array())
    return list->empty() ? "an empty list" : "a list";
  if (const auto text = value.value_exact<std::string>())
    return in_quotes(shortened(*text));
  return shortened(
      problems_.text_between(position_of(value.source().begin), position_of(value.source().end)));
}

void SpecValues::wrong(const toml::node& value, const std::string& rule) const {
  problems_.add(position_of(value.source().begin), cat("expected ", rule, ", got ", got(value)));
}

// An unknown key is likely a slip: the nearest that is known is named.
bool SpecValues::check_keys(const toml::table& table,
                            const std::string& where,
                            const StringViews& known) const {
  bool all_known = true;
  for (const auto& [key, value] : table) {
    if (contains(known, key.str()))
      continue;
    problems_.add(position_of(key.source().begin),
                  cat("expected a key of ",
                      where,
                      " (",
                      join(known, ", "),
                      "), got '",
                      shortened(key.str()),
                      "'",
                      did_you_mean(key.str(), known)));
    all_known = false;
  }
  return all_known;
}

const toml::table& SpecValues::table(const toml::node& value, const std::string& rule) const {
  static const toml::table none;
  if (const toml::table* const table = value.as_table())
    return *table;
  wrong(value, rule);
  return none;
}

const toml::array& SpecValues::list(const toml::node& value, const std::string& rule) const {
  static const toml::array none;
  const toml::array* const list = value.as_array();
  if (list != nullptr && !list->empty())
    return *list;
  wrong(value, rule);
  return none;
}

// Texts become arguments and variables, which end at a NUL.
std::optional<std::string> SpecValues::text(const toml::node& value, const char* key) const {
  auto text = value.value_exact<std::string>();
  if (!text) {
    wrong(value, cat("text for ", key));
  } else if (contains(*text, '\0')) {
    wrong(value, cat("text without NUL for ", key));
    text.reset();
  }
  return text;
}

// A number is taken as it is written, less the '_' between its digits.
std::optional<std::string> SpecValues::scalar(const toml::node& value,
                                              const std::string& what) const {
  if (value.is_string())
    return text(value, what.c_str());
  if (const auto truth = value.value_exact<bool>())
    return *truth ? "true" : "false";
  if (!value.is_number()) {
    wrong(value, cat("a text or a number for ", what));
    return std::nullopt;
  }
  std::string written(
      problems_.text_between(position_of(value.source().begin), position_of(value.source().end)));
  written.erase(std::remove(written.begin(), written.end(), '_'), written.end());
  return written;
}

std::optional<int> SpecValues::integer(const toml::node& value,
                                       const char* key,
                                       int least,
                                       int most) const {
  const auto number = value.value_exact<int64_t>();
  if (number && *number >= least && *number <= most)
    return static_cast<int>(*number);
  wrong(value, cat("a whole number from ", least, " to ", most, " for ", key));
  return std::nullopt;
}

OptionalDuration SpecValues::duration(const toml::node& value, const char* key) const {
  try {
    if (const auto text = value.value_exact<std::string>())
      return parse_duration(*text, key);
  } catch (const Error&) {  // told below, with its place
  }
  wrong(value, cat("a duration (\"30s\", \"250ms\", \"5m\", \"1h30m\") for ", key));
  return std::nullopt;
}

// The unit is asked for by its 'B'.
std::optional<uint64_t> SpecValues::size(const toml::node& value, const char* key) const {
  const auto text = value.value_exact<std::string>();
  try {
    if (text && !trim(*text).empty() && trim(*text).back() == 'B') {
      if (const uint64_t bytes = parse_bytes(*text); bytes > 0)
        return bytes;
    }
  } catch (const Error&) {  // told below, with its place
  }
  wrong(value, cat("a size with its unit (\"20GiB\") for ", key));
  return std::nullopt;
}

}  // namespace muster
