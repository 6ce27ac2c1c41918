// A line is cut around the caret at characters: byte_of_character and count_characters go from
// bytes to characters and back.
#include "muster/base/caret.h"

#include <algorithm>

#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/base/utf8.h"

namespace muster {
namespace {

constexpr int kShownBefore = 60;  // characters of a line before the caret
constexpr int kShownAfter = 40;
constexpr size_t kMaxTextShown = 200;

}  // namespace

size_t byte_of_character(std::string_view text, int number) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!continues_character(text[at]) && number-- == 0)
      break;
  }
  return at;
}

// A long line is shown from a little before the caret, with a mark where it is cut.
std::string caret_lines(std::string_view line, int column) {
  const int at = std::max(1, column) - 1;
  const int from = std::max(0, at - kShownBefore);
  std::string_view piece = line.substr(byte_of_character(line, from));
  piece = piece.substr(0, byte_of_character(piece, at - from + kShownAfter));
  std::string shown(piece);
  std::ranges::replace(shown, '\t', ' ');
  const std::string before = from > 0 ? "…" : "";
  const std::string blanks(at - from + (from > 0 ? 1 : 0), ' ');
  return cat("\n  ", before, printable(shown), "\n  ", blanks, "^");
}

std::string pointing_at(std::string_view flag,
                        std::string_view text,
                        size_t at,
                        const std::string& problem) {
  const int character = count_characters(text.substr(0, at)) + 1;
  return cat(flag,
             shown_text(text, kMaxTextShown),
             ": ",
             printable(problem),
             " (at character ",
             character,
             ")",
             caret_lines(cat(flag, text), count_characters(flag) + character));
}

}  // namespace muster
