// Small text helpers that both columns use. (LibTorch's include path carries another fmt, so shared
// headers concatenate with `cat` instead of formatting.)
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace muster {

using Strings = std::vector<std::string>;
using StringViews = std::vector<std::string_view>;
using StringSet = std::set<std::string>;
using StringMap = std::map<std::string, std::string>;

// What a search of a text returns that has found nothing.
inline constexpr size_t npos = std::string::npos;

namespace detail {
inline constexpr auto kBlanks = " \t\r\n";

inline void append(std::string& out, std::string_view text) {
  out += text;
}
template <std::integral T>
void append(std::string& out, T value) {
  if constexpr (std::same_as<T, bool>) {
    out += value ? "true" : "false";
  } else if constexpr (std::same_as<T, char>) {
    out += value;
  } else {
    out += std::to_string(value);
  }
}
template <std::floating_point T>
void append(std::string& out, T value) {
  char text[32];
  const auto end =
      std::to_chars(
          text, text + sizeof(text), static_cast<double>(value), std::chars_format::general, 6)
          .ptr;
  out.append(text, end);
}

template <class Part>
concept TextOrNumber = requires(std::string& out, const Part& part) { detail::append(out, part); };
}  // namespace detail

// Joins text and numbers: cat("rank ", 3, " of ", 4). A program that uses the namespaces of muster
// and of torch means torch's with tensors.
template <detail::TextOrNumber... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

// Splits at every `separator`; "a,,b" has three pieces, "" has one empty piece.
inline Strings split(std::string_view text, char separator) {
  Strings pieces;
  for (size_t from = 0;;) {
    const size_t to = text.find(separator, from);
    pieces.emplace_back(text.substr(from, to == npos ? to : to - from));
    if (to == npos)
      return pieces;
    from = to + 1;
  }
}

template <class Range>
std::string join(const Range& items, std::string_view separator) {
  std::string out;
  bool first = true;
  for (const auto& item : items) {
    if (!first)
      out += separator;
    first = false;
    detail::append(out, item);
  }
  return out;
}

// Joins the first `most` and counts the others: "a, b and 4 more".
inline std::string join_first(Strings items, std::string_view separator, size_t most) {
  if (items.size() <= most)
    return join(items, separator);
  const size_t more = items.size() - most;
  items.resize(most);
  return cat(join(items, separator), " and ", more, " more");
}

// As messages show what somebody wrote.
inline std::string in_quotes(std::string_view text) {
  return cat("'", text, "'");
}

// "3 GPUs", "1 rank".
inline std::string plural(std::integral auto count, std::string_view word) {
  return cat(count, " ", word, count == 1 ? "" : "s");
}

// Whether the part stands somewhere in the text.
inline bool has_text(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The text without the first character by which some programs mark UTF-8.
inline std::string_view without_byte_order_mark(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf"))
    text.remove_prefix(3);
  return text;
}

// The text without blanks and line ends around it.
inline std::string_view trim(std::string_view text) {
  const size_t from = text.find_first_not_of(detail::kBlanks);
  if (from == npos)
    return {};
  return text.substr(from, text.find_last_not_of(detail::kBlanks) - from + 1);
}

// What stands between blanks and line ends. The text outlives it.
inline StringViews words_of(std::string_view text) {
  StringViews words;
  for (text = trim(text); !text.empty(); text = trim(text)) {
    words.push_back(text.substr(0, text.find_first_of(detail::kBlanks)));
    text.remove_prefix(words.back().size());
  }
  return words;
}

// A to Z become a to z, whatever the locale.
inline char lower_case(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
inline std::string lower_case(std::string text) {
  for (char& c : text)
    c = lower_case(c);
  return text;
}

// The text with control characters as '?', but for those `kept`: what a file or an environment says
// cannot disturb a terminal. Unicode's own (U+0080 to U+009F) are such too.
inline std::string printable(std::string_view text, std::string_view kept = {}) {
  std::string out(text);
  for (size_t i = 0; i < out.size(); ++i) {
    const unsigned char c = out[i];
    const unsigned char next = i + 1 < out.size() ? out[i + 1] : '\0';
    const bool is_control = c < 0x20 || c == 0x7f;
    const bool is_unicode_control = c == 0xc2 && next >= 0x80 && next < 0xa0;
    if (is_control && kept.find(out[i]) == npos)
      out[i] = '?';
    if (is_unicode_control)
      out[i] = out[i + 1] = '?';
  }
  return out;
}

inline std::string printable_lines(std::string_view text) {
  return printable(text, "\n\t");
}

namespace detail {
// The number of bytes of the sequence at the front that colours what follows, such as "\x1b[31m"; 0
// when there is none.
inline size_t color_bytes(std::string_view text) {
  constexpr std::string_view kBegin = "\x1b[";
  if (!text.starts_with(kBegin))
    return 0;
  const size_t end = text.find_first_not_of("0123456789;", kBegin.size());
  return end < text.size() && text[end] == 'm' ? end + 1 : 0;
}
}  // namespace detail

// The text without the sequences that colour what follows.
inline std::string without_colors(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t color = detail::color_bytes(text);
    if (color == 0)
      out += text.front();
    text.remove_prefix(std::max<size_t>(color, 1));
  }
  return out;
}

// The whole text as a number of type T, or nothing: "12" but not "12x", "", "+12" or a value out of
// range. `base` is for whole numbers.
template <class T>
std::optional<T> parse_as(std::string_view text, std::same_as<int> auto... base) {
  T value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value, base...);
  if (error != std::errc() || end != last)
    return std::nullopt;
  return value;
}

inline std::optional<int64_t> parse_int(std::string_view text) {
  return parse_as<int64_t>(text);
}

// The whole text as a number from `least` to `most`; nothing for other texts and numbers.
inline std::optional<int> parse_number(std::string_view text, int least, int most) {
  const auto number = parse_as<int>(text);
  return number && *number >= least && *number <= most ? number : std::nullopt;
}

// A number that counts something: from 0 to what an int can hold.
inline std::optional<int> parse_count(std::string_view text) {
  return parse_number(text, 0, INT32_MAX);
}

}  // namespace muster
