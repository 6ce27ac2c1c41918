// The prolog is passed over item by item, until the first element begins. A text that has no end to
// an item, or holds something else before the element, is no XML.
#include "muster/device/readers/xml_root.h"

#include <algorithm>

#include "muster/base/contains.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"

namespace muster {
namespace {

constexpr size_t kMaxName = 64;

bool is_name_character(char c) {
  const char lower = lower_case(c);
  const bool is_letter = lower >= 'a' && lower <= 'z';
  return is_letter || is_digit(c) || is_one_of(c, '_', '-');
}

// Returns the place behind the first `mark` from `at` on; npos when there is none.
size_t behind(std::string_view text, std::string_view mark, size_t at) {
  const size_t found = text.find(mark, at);
  return found == npos ? found : found + mark.size();
}

// Returns where the item that begins at `text[at]` ("<?", "<!--", "<!DOCTYPE") ends; npos when it
// does not. A document type may hold '>' within its brackets.
size_t end_of_prolog_item(std::string_view text, size_t at) {
  const std::string_view item = text.substr(at);
  if (item.starts_with("<?"))
    return behind(text, "?>", at);
  if (item.starts_with("<!--"))
    return behind(text, "-->", at);
  const size_t subset = text.find_first_of("[>", at);
  if (subset != npos && text[subset] == '[')
    return behind(text, "]>", subset);
  return behind(text, ">", at);
}

}  // namespace

std::string xml_root_name(std::string_view text) {
  text = without_byte_order_mark(text);
  for (size_t at = 0;;) {
    at = text.find_first_not_of(" \t\r\n", at);
    if (at == npos || text[at] != '<')
      return {};
    const std::string_view item = text.substr(at);
    if (item.starts_with("<?") || item.starts_with("<!")) {
      at = end_of_prolog_item(text, at);
      if (at == npos)
        return {};
      continue;
    }
    const std::string_view name = item.substr(1, kMaxName);
    const auto end = std::ranges::find_if_not(name, is_name_character);
    return {name.begin(), end};
  }
}

}  // namespace muster
