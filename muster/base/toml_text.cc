#include "muster/base/toml_text.h"

#include <cstdint>

#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr size_t kMaxKeyDots = 8;

// How many bytes the character at `at` has; 0 when it is no UTF-8.
size_t utf8_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> uint32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const uint32_t first = byte(0);
  if (first < 0x80)
    return 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4)
    return 0;
  uint32_t code = first & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80)
      return 0;
    code = (code << 6U) | (byte(i) & 0x3fU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kLeast[bytes] || code > 0x10ffff || surrogate ? 0 : bytes;
}

// Goes through the text once, and knows of every character whether it is in quotes or in a comment.
class TomlScanner {
 public:
  explicit TomlScanner(std::string_view text) : text_(text) {
    if (text_.starts_with("\xef\xbb\xbf"))
      at_ = 3;
  }

  void scan() {
    while (at_ < text_.size())
      step();
  }

 private:
  enum class In { plain, comment, quotes };

  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw TomlError{.line = line_, .column = column_, .expected = expected, .got = got};
  }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word)
      return false;
    advance(word.size());
    return true;
  }

  void advance(size_t bytes) {
    at_ += bytes;
    column_ += static_cast<int>(bytes);
  }

  void step() {
    const size_t bytes = utf8_bytes(text_, at_);
    if (bytes == 0)
      fail("UTF-8", "bytes that are none");
    if (in_ == In::quotes)
      return quoted(bytes);
    const char c = text_[at_];
    if (c == '\n')
      return end_line();
    if (in_ == In::plain && bytes > 1) {
      fail("ASCII outside quotes and comments", "another character");
    }
    if (in_ == In::plain && open_quotes())
      return;
    if (in_ == In::plain)
      plain(c);
    next_character(bytes);
  }

  void plain(char c) {
    if (c == '#') {
      in_ = In::comment;
    } else if (c == '.') {
      if (++dots_ > kMaxKeyDots)
        fail("plain keys", "one of many dots");
    } else if (c == '=' || c == ',' || c == '[' || c == ']' || c == '{' || c == '}') {
      dots_ = 0;
    }
  }

  bool open_quotes() {
    for (const std::string_view quotes : {R"(""")", "'''", "\"", "'"}) {
      if (!take(quotes))
        continue;
      quotes_ = quotes;
      in_ = In::quotes;
      return true;
    }
    return false;
  }

  void quoted(size_t bytes) {
    if (take(quotes_)) {
      in_ = In::plain;
      // """a""""" ends with two quotes of the text itself.
      for (int more = 0; more < 2 && quotes_.size() == 3; ++more)
        take(quotes_.substr(0, 1));
      return;
    }
    if (text_[at_] == '\n')
      return end_line();
    const bool escapes = text_[at_] == '\\' && quotes_[0] == '"';
    next_character(bytes);
    if (!escapes || at_ == text_.size() || text_[at_] == '\n')
      return;
    if (const size_t escaped = utf8_bytes(text_, at_); escaped > 0)
      next_character(escaped);
  }

  // A line's end closes what should have been closed, so that TOML's reader finds that first.
  void end_line() {
    if (in_ == In::comment || quotes_.size() == 1)
      in_ = In::plain;
    dots_ = 0;
    ++at_;
    ++line_;
    column_ = 1;
  }

  void next_character(size_t bytes) {
    at_ += bytes;
    ++column_;
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  int column_ = 1;
  In in_ = In::plain;
  std::string_view quotes_ = {};
  size_t dots_ = 0;
};

}  // namespace

void check_toml(std::string_view text) {
  TomlScanner(text).scan();
}

toml::table parse_toml(std::string_view text) {
  check_toml(text);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    const auto at = error.source().begin;
    throw TomlError{.line = static_cast<int>(at.line),
                    .column = static_cast<int>(at.column),
                    .expected = "TOML",
                    .got = cat("something else: ", error.description())};
  }
}

}  // namespace muster
