// Collects what is wrong with a spec file, each problem with its place, and tells it in one error
// that shows each line with a caret under the character. For spec*.cc; a private header.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/lists.h"
#include "muster/tasks/task.h"

namespace muster {

class SpecProblems {
 public:
  // Both must outlive it.
  SpecProblems(const std::string& text, const std::string& source);

  // Takes a problem down, once. Throws: invalid_argument with all so far when they are enough for
  // one go.
  void add(SpecPosition at, const std::string& problem);

  // Throws: invalid_argument with this problem and all so far.
  [[noreturn]] void fail(SpecPosition at, const std::string& problem);

  // Throws: invalid_argument when there are any.
  void throw_if_any() const;

  // The line with a caret under its character, as caret_lines has it; empty: there is nothing to
  // show.
  std::string shown(SpecPosition at) const;

  // The text of the file from `begin` to `end`, if that is on one line.
  std::string_view text_between(SpecPosition begin, SpecPosition end) const;

  // The position of the byte `at` of the text `value`, which begins at `begin`, quotes included;
  // `begin` itself when the file spells the text in another way.
  SpecPosition inside(SpecPosition begin, std::string_view value, size_t at) const;

 private:
  std::string_view line(int number) const;
  std::string_view from(SpecPosition at) const;
  [[noreturn]] void throw_all() const;

  const std::string& text_;
  const std::string& source_;
  Indices lines_;  // where each begins
  std::set<std::pair<std::pair<int, int>, std::string>> problems_;
};

}  // namespace muster
