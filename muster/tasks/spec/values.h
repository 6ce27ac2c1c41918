// Values of a spec file by what they should be. Every reader takes a problem down and returns
// nothing when a value is of another kind. For tables.cc and needs.cc; a private header, because it
// shows toml++.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/tasks/spec/problems.h"
#include "muster/tasks/task.h"

namespace muster {

SpecPosition position_of(const toml::source_position& at);

class SpecValues {
 public:
  explicit SpecValues(SpecProblems& problems) : problems_(problems) {}

  // "expected <rule>, got <what stands there>".
  void wrong(const toml::node& value, const std::string& rule) const;

  // Whether all were known.
  bool check_keys(const toml::table& table,
                  const std::string& where,
                  const StringViews& known) const;

  // The table, or the list of one entry at least; an empty one, which nothing is read of, where the
  // value is another.
  const toml::table& table(const toml::node& value, const std::string& rule) const;
  const toml::array& list(const toml::node& value, const std::string& rule) const;

  std::optional<std::string> text(const toml::node& value, const char* key) const;

  // A text, or a number or truth value as the file has it.
  std::optional<std::string> scalar(const toml::node& value, const std::string& what) const;

  std::optional<int> integer(const toml::node& value, const char* key, int least, int most) const;

  OptionalDuration duration(const toml::node& value, const char* key) const;

  // A size with its unit: without one it would be bytes, surely not what was meant.
  std::optional<uint64_t> size(const toml::node& value, const char* key) const;

  SpecProblems& problems() const { return problems_; }

 private:
  std::string got(const toml::node& value) const;

  SpecProblems& problems_;
};

}  // namespace muster
