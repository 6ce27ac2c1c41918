// A text is cut at its placeholders once. Filling it in then only joins the pieces with the values,
// since a million tasks may be made of one text.
#include "muster/tasks/spec/placeholders.h"

#include <algorithm>

#include "muster/base/contains.h"
#include "muster/base/nearest.h"

namespace muster {
namespace {

// A brace that is not closed would show the rest of a script.
constexpr size_t kMaxPlaceholderShown = 40;

// Calls `literal(text)` and `placeholder(name, at)` for the pieces of `text`, in their order.
// Throws: TaskTextError.
template <class Literal, class Placeholder>
void scan_task_text(std::string_view text, const Literal& literal, const Placeholder& placeholder) {
  for (size_t at = 0; at < text.size();) {
    const size_t brace = std::min(text.find_first_of("{}", at), text.size());
    if (brace > at)
      literal(text.substr(at, brace - at));
    at = brace;
    if (at == text.size())
      return;
    const std::string_view pair = text.substr(at, 2);
    if (is_one_of(pair, "{{", "}}")) {
      literal(text.substr(at, 1));
      at += 2;
      continue;
    }
    if (text[at] == '}')
      throw TaskTextError("expected '}}' for a brace, or '{' before it, got '}'", at);
    const size_t end = text.find_first_of("{}", at + 1);
    if (end == npos || text[end] == '{')
      throw TaskTextError("expected '}' after '{' (or '{{' for a brace), got none", at);
    placeholder(text.substr(at + 1, end - at - 1), at);
    at = end + 1;
  }
}

// The placeholder is of no parameter.
[[noreturn]] void fail_unknown(std::string_view name, size_t at, const StringViews& parameters) {
  const auto got = cat("'{", name.substr(0, kMaxPlaceholderShown), "}'");
  if (parameters.empty()) {
    throw TaskTextError(cat("expected '{{' for a brace, since no parameters are given, got ", got),
                        at);
  }
  throw TaskTextError(cat("expected a parameter ({",
                          join(parameters, "}, {"),
                          "}) or '{{' for a brace, got ",
                          got,
                          did_you_mean(name, parameters)),
                      at);
}

}  // namespace

// Text before the first placeholder is first_; every other text goes with the placeholder before
// it.
TaskText::TaskText(std::string_view text, const StringViews& parameters) {
  scan_task_text(
      text,
      [&](std::string_view literal) {
        if (pieces_.empty()) {
          first_ += literal;
        } else {
          pieces_.back().text += literal;
          rest_bytes_ += literal.size();
        }
      },
      [&](std::string_view name, size_t at) {
        const auto found = std::ranges::find(parameters, name);
        if (found == parameters.end())
          fail_unknown(name, at, parameters);
        const size_t number = found - parameters.begin();
        pieces_.push_back({.parameter = number});
      });
}

std::string TaskText::with(const StringViews& values) const {
  std::string text = first_;
  for (const Piece& piece : pieces_) {
    text += values.at(piece.parameter);
    text += piece.text;
  }
  return text;
}

bool TaskText::uses(size_t parameter) const {
  return contains(pieces_, parameter, &Piece::parameter);
}

StringViews placeholders_of(std::string_view text) {
  StringViews names;
  scan_task_text(
      text,
      [](std::string_view) {},
      [&](std::string_view name, size_t) {
        if (!contains(names, name))
          names.push_back(name);
      });
  return names;
}

bool is_parameter_name(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto may_follow = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '-';
  };
  return !name.empty() && is_letter(name[0]) && all_of(name, may_follow);
}

}  // namespace muster
