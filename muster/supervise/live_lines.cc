#include "muster/supervise/live_lines.h"

#include <algorithm>
#include <set>
#include <vector>

#include "muster/base/strings.h"
#include "muster/supervise/collapse.h"

namespace muster {

namespace {

// DECAWM: a line that is too long is cut by the terminal itself, which knows its width and that of
// characters.
constexpr const char* kCutLines = "\033[?7l";
constexpr const char* kWrapLines = "\033[?7h";
constexpr const char* kNoColour = "\033[0m";

// One past the escape sequence at `from`.
size_t end_of_sequence(const std::string& text, size_t from) {
  size_t at = from + 1;
  if (at == text.size() || text[at] != '[')
    return std::min(at + 1, text.size());
  for (++at; at < text.size(); ++at) {
    if (text[at] >= '@' && text[at] <= '~')
      return at + 1;
  }
  return at;
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
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte == '\t' || (byte >= ' ' && byte != 0x7f))
      kept += text[at];
    ++at;
  }
  return kept.find('\033') == std::string::npos ? kept : kept + kNoColour;
}

struct LiveGroup {
  std::string prefix;  // of the first
  std::string text;
  std::set<int> numbers;
};

std::string to_text(const LiveGroup& group) {
  const std::string text = in_one_line(group.text);
  if (group.numbers.size() == 1)
    return group.prefix + text;
  return cat("[", number_ranges(group.numbers), "] ", text, " ×", group.numbers.size());
}

}  // namespace

bool draws_anew(const std::string& name) {
  return !name.empty() && name != "dumb";
}

bool LiveLines::set(size_t id, int number, const std::string& prefix, const std::string& text) {
  if (text.empty())
    return lines_.erase(id) > 0;
  Line& line = lines_[id];
  if (line.text == text)
    return false;
  line = {.number = number, .prefix = prefix, .text = text};
  return true;
}

std::string LiveLines::erase() {
  return "\r\033[J";
}

std::string LiveLines::draw(size_t rows) const {
  std::vector<LiveGroup> groups;
  std::map<std::string, size_t> place;
  for (const auto& [id, line] : lines_) {
    const auto [at, is_new] = place.emplace(line.text, groups.size());
    if (is_new)
      groups.push_back({.prefix = line.prefix, .text = line.text, .numbers = {}});
    groups[at->second].numbers.insert(line.number);
  }
  if (groups.empty() || rows == 0)
    return "";
  const size_t shown = groups.size() <= rows ? groups.size() : rows - 1;  // one to tell of the rest
  std::string text = kCutLines;
  for (size_t i = 0; i < shown; ++i)
    text += cat(i == 0 ? "" : "\n", to_text(groups[i]));
  if (shown < groups.size())
    text += cat(shown == 0 ? "" : "\n", "… and ", groups.size() - shown, " more");
  if (groups.size() > 1 && rows > 1)
    text += cat("\r\033[", std::min(groups.size(), rows) - 1, "A");
  return text + kWrapLines;
}

}  // namespace muster
