#include "muster/tasks/spec/problems.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr size_t kMaxProblems = 10;
constexpr size_t kShownBefore = 60;  // characters of a line before the caret
constexpr size_t kShownAfter = 40;

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) != 0x80;
}

// The byte at which character `count`, from 0, begins.
size_t byte_of(std::string_view text, size_t count) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (begins_character(text[at]) && count-- == 0)
      break;
  }
  return at;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, begins_character));
}

}  // namespace

std::string caret_lines(std::string_view line, int column) {
  const size_t at = static_cast<size_t>(std::max(1, column)) - 1;
  const size_t from = at > kShownBefore ? at - kShownBefore : 0;
  std::string_view piece = line.substr(byte_of(line, from));
  piece = piece.substr(0, byte_of(piece, at - from + kShownAfter));
  std::string shown(piece);
  std::ranges::replace(shown, '\t', ' ');
  return cat("\n  ",
             from > 0 ? "…" : "",
             printable(shown),
             "\n  ",
             std::string(at - from + (from > 0 ? 1 : 0), ' '),
             "^");
}

SpecProblems::SpecProblems(const std::string& text, const std::string& source)
    : text_(text), source_(source), lines_{0} {
  for (size_t at = 0; (at = text_.find('\n', at)) != std::string::npos;)
    lines_.push_back(++at);
}

void SpecProblems::add(SpecPosition at, const std::string& problem) {
  problems_.insert({{at.line, at.column}, problem});
  if (problems_.size() >= kMaxProblems)
    throw_all();
}

void SpecProblems::fail(SpecPosition at, const std::string& problem) {
  problems_.insert({{at.line, at.column}, problem});
  throw_all();
}

void SpecProblems::throw_if_any() const {
  if (!problems_.empty())
    throw_all();
}

void SpecProblems::throw_all() const {
  std::string message;
  for (const auto& [at, problem] : problems_) {
    if (!message.empty())
      message += "\n";
    message += cat(printable(source_),
                   ":",
                   at.first,
                   ":",
                   at.second,
                   ": ",
                   printable(problem),
                   shown({at.first, at.second}));
  }
  if (problems_.size() >= kMaxProblems)
    message += "\nthere may be more";
  throw Error(ErrorCode::invalid_argument, message);
}

std::string SpecProblems::shown(SpecPosition at) const {
  const std::string_view whole = line(at.line);
  return trim(whole).empty() ? std::string() : caret_lines(whole, at.column);
}

std::string_view SpecProblems::line(int number) const {
  if (number < 1 || static_cast<size_t>(number) > lines_.size())
    return {};
  const size_t begin = lines_[static_cast<size_t>(number) - 1];
  std::string_view line = std::string_view(text_).substr(begin);
  line = line.substr(0, line.find('\n'));
  if (line.ends_with('\r'))
    line.remove_suffix(1);
  return line;
}

std::string_view SpecProblems::from(SpecPosition at) const {
  const std::string_view whole = line(at.line);
  return at.column < 1 ? whole : whole.substr(byte_of(whole, static_cast<size_t>(at.column) - 1));
}

std::string_view SpecProblems::text_between(SpecPosition begin, SpecPosition end) const {
  if (begin.line != end.line || end.column < begin.column)
    return {};
  const std::string_view rest = from(begin);
  return rest.substr(0, byte_of(rest, static_cast<size_t>(end.column - begin.column)));
}

SpecPosition SpecProblems::inside(SpecPosition begin, std::string_view value, size_t at) const {
  const std::string_view rest = from(begin);
  if (rest.empty() || (rest[0] != '"' && rest[0] != '\'') || rest.substr(1, value.size()) != value)
    return begin;
  return {begin.line, begin.column + 1 + static_cast<int>(count_characters(value.substr(0, at)))};
}

}  // namespace muster
