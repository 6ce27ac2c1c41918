// How it works: each stream has at most one line here. To draw is to put the streams that show the
// same into one line, to cut every line at the terminal's width, and to leave the cursor where the
// lines begin, so that the next drawing can erase them.
#include "muster/supervise/live_lines.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/supervise/collapse.h"

namespace muster {

namespace {

// These are DECAWM: a line that is too long is cut by the terminal itself, which knows its width
// and that of characters.
constexpr auto kCutLines = "\033[?7l";
constexpr auto kWrapLines = "\033[?7h";
constexpr auto kNoColour = "\033[0m";

// The place after the escape sequence at `from`. A sequence "ESC [ …" ends in a character from @ to
// ~; others have two characters.
size_t end_of_sequence(const std::string& text, size_t from) {
  size_t at = from + 1;
  if (at == text.size() || text[at] != '[')
    return std::min(at + 1, text.size());
  do {
    ++at;
  } while (at < text.size() && (text[at] < '@' || text[at] > '~'));
  return std::min(at + 1, text.size());
}

bool is_shown(char c) {
  const unsigned char byte = c;
  return byte == '\t' || (byte >= ' ' && byte != 0x7f);
}

// Colours stay; what would move the cursor out of the line goes.
std::string in_one_line(const std::string& text) {
  std::string kept;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\033') {
      const size_t end = end_of_sequence(text, at);
      if (text[end - 1] == 'm')
        kept += text.substr(at, end - at);
      at = end;
      continue;
    }
    if (is_shown(text[at]))
      kept += text[at];
    ++at;
  }
  return contains(kept, '\033') ? kept + kNoColour : kept;
}

struct LiveGroup {
  std::string prefix;  // of the first
  std::string text;
  IntSet numbers;
};

// One line of the terminal, with the numbers of the streams where several show it.
std::string to_text(const LiveGroup& group) {
  const auto text = in_one_line(group.text);
  if (group.numbers.size() == 1)
    return group.prefix + text;
  return cat("[", number_ranges(group.numbers), "] ", text, " ×", group.numbers.size());
}

// Groups are in the order of their first streams.
std::vector<LiveGroup> live_groups(const std::map<size_t, LiveLine>& lines) {
  std::vector<LiveGroup> groups;
  std::map<std::string, size_t> place;
  for (const auto& [id, line] : lines) {
    const auto [at, is_new] = place.emplace(line.text, groups.size());
    if (is_new)
      groups.push_back({.prefix = line.prefix, .text = line.text, .numbers = {}});
    groups[at->second].numbers.insert(line.number);
  }
  return groups;
}

}  // namespace

bool draws_anew(const std::string& name) {
  return !name.empty() && name != "dumb";
}

bool draws_anew(int fd) {
  return ::isatty(fd) == 1 && draws_anew(get_env("TERM").value_or(""));
}

bool LiveLines::set(size_t id, int number, const std::string& prefix, const std::string& text) {
  if (text.empty())
    return lines_.erase(id) > 0;
  LiveLine& line = lines_[id];
  if (line.text == text)
    return false;
  line = {.number = number, .prefix = prefix, .text = text};
  return true;
}

std::string LiveLines::erase() {
  return "\r\033[J";
}

std::string LiveLines::draw(size_t rows) const {
  const auto groups = live_groups(lines_);
  if (groups.empty() || rows == 0)
    return "";
  // One row tells of the rest where not all have room.
  const size_t shown = groups.size() <= rows ? groups.size() : rows - 1;
  Strings drawn;
  for (size_t i = 0; i < shown; ++i)
    drawn.push_back(to_text(groups[i]));
  if (shown < groups.size())
    drawn.push_back(cat("… and ", groups.size() - shown, " more"));
  std::string text = kCutLines + join(drawn, "\n");
  if (drawn.size() > 1)
    text += cat("\r\033[", drawn.size() - 1, "A");
  return text + kWrapLines;
}

}  // namespace muster
