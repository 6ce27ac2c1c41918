// Text from a file or a command line, for a message or a table: it can neither disturb a terminal
// nor fill it.
#pragma once

#include <string>
#include <string_view>

#include "muster/base/strings.h"
#include "muster/base/utf8.h"

namespace muster {

// Replaces control characters by '?', and shortens a longer text with "…".
inline std::string shown_text(std::string_view text, size_t most = 300) {
  return printable(cut_text(text, most)) + (text.size() > most ? "…" : "");
}

}  // namespace muster
