// Shows a text again and again, as it changes, until the user has seen enough. For
// `muster devices --watch` and `muster top`.
#pragma once

#include <functional>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/functions.h"

namespace muster {

struct WatchOptions {
  milliseconds interval{1000};
  int count = 0;  // how often; 0: until SIGINT
  // Stands before each text but the first, if texts are not redrawn in place.
  std::string separator = "----\n";
  Condition goes_on{};  // asked after each text; empty: it does
};

// Writes what `make_text` returns to `fd`: on a terminal in place, cut to its size; elsewhere, and
// on a terminal that cannot be drawn anew, one after the other. SIGINT ends it. Blocking:
// until then, or `count` texts, or goes_on() says no. Throws: io, and what make_text throws.
void watch(int fd, const std::function<std::string()>& make_text, const WatchOptions& options);

// Returns the first lines of `text` that fit, each cut to `columns` characters. 0: no limit.
std::string fit_to_terminal(const std::string& text, size_t rows, size_t columns);

// Returns the text with the codes that draw it at the top of the terminal, cut to its size.
std::string drawn_at_top(int fd, const std::string& text);

}  // namespace muster
