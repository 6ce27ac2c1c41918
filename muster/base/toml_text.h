// The one way in which muster reads TOML. It is checked before toml++ 3.3 sees it: UTF-8, and
// nothing of what makes that misbehave, which is letters beyond ASCII where a key or a value should
// begin, and keys of many dots, which nest tables without end. A private header, because it shows
// toml++.
#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>

namespace muster {

// What is wrong with a TOML text, and where. Whoever reads a file makes an Error of it that names
// the file.
struct TomlError {
  int line = 1;    // from 1
  int column = 1;  // from 1, in characters
  std::string expected{};
  std::string got{};
};

// Throws: TomlError.
void check_toml(std::string_view text);

// With check_toml first. Throws: TomlError.
toml::table parse_toml(std::string_view text);

}  // namespace muster
