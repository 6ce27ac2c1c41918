// How it works: a byte is written as the character of the same number, U+0000 to U+00FF, which has
// one byte in UTF-8 or two.
#include "muster/base/byte_text.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

char char_of(unsigned byte) {
  return static_cast<char>(byte);
}

}  // namespace

// The two bytes of a character have its upper two bits and its lower six.
std::string text_of_bytes(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    const unsigned char byte = c;
    if (byte < 0x80) {
      text += c;
    } else {
      text += char_of(0xc0U | (byte >> 6U));
      text += char_of(0x80U | (byte & 0x3fU));
    }
  }
  return text;
}

std::string bytes_of_text(const std::string& text, const std::string& what) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char byte = text[i];
    if (byte < 0x80) {
      bytes += text[i];
      continue;
    }
    const bool begins_pair = (byte & 0xfcU) == 0xc0U && i + 1 < text.size();
    if (!begins_pair)
      throw invalid_argument(what, ": expected bytes as characters, got others");
    const unsigned char low = text[++i];
    bytes += char_of(((byte & 0x03U) << 6U) | (low & 0x3fU));
  }
  return bytes;
}

}  // namespace muster
