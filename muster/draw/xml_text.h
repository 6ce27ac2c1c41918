// Words in a picture or a page: escaped, and cut to the room that there is. For who writes SVG and
// HTML; a private header.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// The text as the content of an XML element or attribute: markup escaped, and what XML or a
// reader's eye must not meet (control characters, marks that turn the direction of writing, bytes
// that are no UTF-8) shown as
// '?'.
std::string xml_text(std::string_view text);

// At most `max_chars` characters, the last of them "…" when some had to go. Not yet escaped.
std::string fit_text(std::string_view text, size_t max_chars);

// About how wide the text is in the font. Units: pixels.
int text_width(std::string_view text, int font_size);

// How many characters of the font go into `width` pixels.
size_t chars_in(int width, int font_size);

}  // namespace muster
