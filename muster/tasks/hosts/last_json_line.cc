// The file is read from its end and looked through line by line, the last line first: a task's
// result is usually among its last words, and a log may be very long. A carriage return ends a line
// too: a progress bar that is wiped ends with one, and the result follows it.
#include "muster/tasks/hosts/last_json_line.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/json_depth.h"
#include "muster/base/utf8.h"

namespace muster {
namespace {

constexpr std::string_view kLineEnds = "\r\n";

// The texts that stand for numbers that are not finite.
constexpr const char* kNotFinite[] = {"NaN", "Infinity", "-Infinity"};

// Whether it is a number that no double can hold.
bool overflows(const std::string& word) {
  const bool begins_as_number = std::isdigit(static_cast<unsigned char>(word[0])) != 0;
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  return begins_as_number && *end == '\0' && std::isinf(value);
}

// The text that stands for what a language prints of such a number, as "NaN", "-nan(ind)", "+Inf"
// and "1e400"; empty for another word.
std::string_view text_of_not_finite(std::string_view printed) {
  const bool is_negative = printed.starts_with('-');
  const bool has_sign = is_negative || printed.starts_with('+');
  std::string word(printed.substr(has_sign ? 1 : 0));
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  if (word == "nan" || word.starts_with("nan("))
    return kNotFinite[0];
  if (is_one_of(word, "inf", "infinity") || overflows(word))
    return kNotFinite[is_negative ? 2 : 1];
  return {};
}

// A whole number of more than 64 bits as it stands, as a double would round it; empty for another
// word.
std::string_view text_of_large(std::string_view printed) {
  const std::string_view digits = printed.substr(printed.starts_with('-') ? 1 : 0);
  if (digits.find_first_not_of("0123456789") != npos)
    return {};
  uint64_t number = 0;
  int64_t negative = 0;
  const char* const end = printed.data() + printed.size();
  const auto read = digits.size() == printed.size()
                        ? std::from_chars(printed.data(), end, number)
                        : std::from_chars(printed.data(), end, negative);
  return read.ec == std::errc::result_out_of_range ? printed : std::string_view();
}

// The line with what is no character of UTF-8 made U+FFFD: JSON is UTF-8.
std::string in_utf8(std::string_view line) {
  std::string text;
  while (!line.empty()) {
    const size_t bytes = utf8_bytes(line);
    text += bytes == 0 ? "\uFFFD" : line.substr(0, bytes);
    line.remove_prefix(std::max<size_t>(1, bytes));
  }
  return text;
}

// The line with such words made texts, unless they stand within a text.
std::string with_quoted_names(std::string_view line) {
  constexpr auto kEnds = " \t,:[]{}\"";
  std::string quoted;
  bool in_text = false;
  for (size_t at = 0; at < line.size();) {
    const std::string_view rest = line.substr(at);
    const std::string_view word = in_text ? "" : rest.substr(0, rest.find_first_of(kEnds));
    if (!word.empty()) {
      const std::string_view infinite = text_of_not_finite(word);
      const std::string_view text = infinite.empty() ? text_of_large(word) : infinite;
      quoted += text.empty() ? std::string(word) : cat('"', text, '"');
      at += word.size();
      continue;
    }
    const bool escapes = in_text && line[at] == '\\' && at + 1 < line.size();
    if (escapes)
      quoted += line[at++];  // and below what it escapes
    else if (line[at] == '"')
      in_text = !in_text;
    quoted += line[at++];
  }
  return quoted;
}

// The line without the prefix that the launcher gives the lines of a job's ranks: "[0] ".
std::string_view without_rank(std::string_view line) {
  if (!line.starts_with('['))
    return line;
  const size_t end = std::min(line.find_first_not_of("0123456789", 1), line.size());
  const bool has_rank = end > 1 && line.substr(end).starts_with("] ");
  return has_rank ? line.substr(end + 2) : line;
}

// "acc is NaN" or "runs[2].acc is NaN" for the first such text in the value of this name; empty:
// there is none.
std::string not_finite_in(const nlohmann::ordered_json& value, const std::string& name) {
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    const bool is_one = contains(kNotFinite, text);
    return is_one ? cat(printable(name), " is ", text) : "";
  }
  if (!value.is_structured())
    return "";
  for (const auto& [key, part] : value.items()) {
    const auto place = value.is_array() ? cat(name, "[", key, "]") : cat(name, ".", key);
    if (std::string field = not_finite_in(part, place); !field.empty())
      return field;
  }
  return "";
}

// Fills `text` from the file, and returns how many bytes there were: fewer when the file was cut
// meanwhile.
size_t read_at(const Fd& file, const std::string& path, off_t from, std::string& text) {
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = ::pread(file.get(), text.data() + have, text.size() - have, from);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      fail_errno(errno, "cannot read ", printable(path));
    if (n == 0)
      break;
    have += n;
    from += n;
  }
  return have;
}

// The whole lines at the end of the file, in its last `max_bytes`.
std::string last_lines_of_file(const std::string& path, size_t max_bytes) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid())
    fail_errno(errno, "cannot open ", printable(path));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0)
    fail_errno(errno, "cannot look at ", printable(path));
  const size_t size = std::max<off_t>(0, status.st_size);
  const bool cut = size > max_bytes;
  // One byte more shows whether a line begins exactly where the piece does.
  std::string text(cut ? max_bytes + 1 : size, '\0');
  const auto from = static_cast<off_t>(size - text.size());
  text.resize(read_at(file, path, from, text));
  if (!cut)
    return text;
  const size_t end = text.find_first_of(kLineEnds);
  return end == npos ? "" : text.substr(end + 1);
}

}  // namespace

std::string last_json_line(const std::string& path, size_t max_bytes) {
  return last_json_line_of(last_lines_of_file(path, max_bytes));
}

// A line is taken as it stands, but that what a double cannot hold is made text, and bytes that are
// no character the sign for that.
std::string last_json_line_of(const std::string& text) {
  for (std::string_view rest = text;;) {
    const size_t begin = rest.find_last_of(kLineEnds) + 1;  // 0 in the first line, as npos + 1 is 0
    const std::string_view line = without_rank(trim(rest.substr(begin)));
    const bool may_be_one = line.starts_with('{') && line.ends_with('}');
    if (std::string taken = may_be_one ? with_quoted_names(in_utf8(line)) : "";
        !taken.empty() && parsed_json<nlohmann::json>(taken).is_object())
      return taken;
    if (begin == 0)
      return "";
    rest = rest.substr(0, begin - 1);
  }
}

std::string not_finite_field(const std::string& json_line, const StringMap& parameters) {
  const auto object = parsed_json<nlohmann::ordered_json>(json_line);
  if (!object.is_object())
    return "";
  for (const auto& [name, value] : object.items()) {
    std::string field = parameters.contains(name) ? "" : not_finite_in(value, name);
    if (!field.empty())
      return field;
  }
  return "";
}

}  // namespace muster
