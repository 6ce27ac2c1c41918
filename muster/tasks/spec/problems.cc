// Problems are kept in the order of their places, whatever order they were found in.
#include "muster/tasks/spec/problems.h"

#include "muster/base/caret.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/utf8.h"

namespace muster {
namespace {

constexpr size_t kMaxProblems = 10;

}  // namespace

SpecProblems::SpecProblems(const std::string& text, const std::string& source)
    : text_(text), source_(source), lines_{0} {
  for (size_t at = 0; (at = text_.find('\n', at)) != npos;)
    lines_.push_back(++at);
}

// The set keeps each problem once.
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

// One problem a line, each with the line of the file that it is in.
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
  throw invalid_argument(message);
}

std::string SpecProblems::shown(SpecPosition at) const {
  const std::string_view whole = line(at.line);
  return trim(whole).empty() ? std::string() : caret_lines(whole, at.column);
}

// The line of that number, from 1, without its end; empty: there is none.
std::string_view SpecProblems::line(int number) const {
  if (number < 1 || number > std::ssize(lines_))
    return {};
  std::string_view line = std::string_view(text_).substr(lines_[number - 1]);
  line = line.substr(0, line.find('\n'));
  if (line.ends_with('\r'))
    line.remove_suffix(1);
  return line;
}

// The rest of the line from there on.
std::string_view SpecProblems::from(SpecPosition at) const {
  const std::string_view whole = line(at.line);
  return at.column < 1 ? whole : whole.substr(byte_of_character(whole, at.column - 1));
}

std::string_view SpecProblems::text_between(SpecPosition begin, SpecPosition end) const {
  if (begin.line != end.line || end.column < begin.column)
    return {};
  const std::string_view rest = from(begin);
  return rest.substr(0, byte_of_character(rest, end.column - begin.column));
}

SpecPosition SpecProblems::inside(SpecPosition begin, std::string_view value, size_t at) const {
  const std::string_view rest = from(begin);
  const bool is_quoted = rest.starts_with('"') || rest.starts_with('\'');
  if (!is_quoted || rest.substr(1, value.size()) != value)
    return begin;
  return {begin.line, begin.column + 1 + count_characters(value.substr(0, at))};
}

}  // namespace muster
