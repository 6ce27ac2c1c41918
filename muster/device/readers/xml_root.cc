#include "muster/device/readers/xml_root.h"

#include "muster/base/strings.h"

namespace muster {
namespace {

bool is_name_character(char c) {
  return c == '_' || c == '-' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

// Where what begins at `text[at]` ("<?", "<!--", "<!DOCTYPE") ends; npos when it does not.
size_t end_of_prolog_item(std::string_view text, size_t at) {
  const auto after = [&](std::string_view mark) {
    const size_t found = text.find(mark, at);
    return found == std::string_view::npos ? found : found + mark.size();
  };
  if (text.substr(at, 2) == "<?")
    return after("?>");
  if (text.substr(at, 4) == "<!--")
    return after("-->");
  const size_t subset = text.find_first_of("[>", at);
  if (subset == std::string_view::npos || text[subset] == '>')
    return after(">");
  at = subset;
  return after("]>");
}

}  // namespace

std::string xml_root_name(std::string_view text) {
  text = without_byte_order_mark(text);
  for (size_t at = 0;;) {
    at = text.find_first_not_of(" \t\r\n", at);
    if (at == std::string_view::npos || text[at] != '<')
      return {};
    if (at + 1 < text.size() && (text[at + 1] == '?' || text[at + 1] == '!')) {
      at = end_of_prolog_item(text, at);
      if (at == std::string_view::npos)
        return {};
      continue;
    }
    size_t end = at + 1;
    while (end < text.size() && is_name_character(text[end]) && end - at <= 64)
      ++end;
    return std::string(text.substr(at + 1, end - at - 1));
  }
}

}  // namespace muster
