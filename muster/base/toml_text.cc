// How it works: a scanner goes through the text before toml++ does. It knows of every character
// whether it is in quotes, in a comment or in neither, which is all that its checks need.
#include "muster/base/toml_text.h"

#include <algorithm>
#include <string>

#include "muster/base/contains.h"
#include "muster/base/strings.h"
#include "muster/base/utf8.h"

namespace muster {

namespace {

constexpr size_t kMaxKeyDots = 8;
constexpr std::string_view kBlank = " \t\r";
constexpr std::string_view kBeginsName =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-\"'";

// Throws a TomlError at the first place that toml++ must not see.
class TomlScanner {
 public:
  explicit TomlScanner(std::string_view text) : text_(without_byte_order_mark(text)) {}

  void scan() {
    while (at_ < text_.size())
      step();
  }

 private:
  enum class In { plain, comment, quotes };

  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw TomlError{.line = line_, .column = column_, .expected = expected, .got = got};
  }

  // Takes a word of ASCII, if it comes next.
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word))
      return false;
    for (size_t i = 0; i < word.size(); ++i)
      next_character(1);
    return true;
  }

  // Takes a character, a quote or a line's end.
  void step() {
    const size_t bytes = utf8_bytes(text_.substr(at_));
    if (bytes == 0)
      fail("UTF-8", "bytes that are none");
    if (in_ == In::quotes)
      return quoted(bytes);
    const char c = text_[at_];
    if (c == '\n')
      return end_line();
    if (in_ == In::plain && bytes > 1)
      fail("ASCII outside quotes and comments", "another character");
    if (in_ == In::plain && open_quotes())
      return;
    if (in_ == In::plain)
      plain(c);
    next_character(bytes);
  }

  // Counts the dots of a key, which ends at any sign of TOML.
  void plain(char c) {
    constexpr std::string_view kSigns = "=,[]{}";
    if (c == '[' && begins_line_ && closers_.empty())
      check_head();
    begins_line_ = begins_line_ && contains(kBlank, c);
    brackets(c);
    if (c == '#')
      in_ = In::comment;
    else if (contains(kSigns, c))
      dots_ = 0;
    else if (c == '.' && ++dots_ > kMaxKeyDots)
      fail("plain keys", "one of many dots");
  }

  // What was opened last is closed first. toml++ aborts on [}.
  void brackets(char c) {
    if (c == '[' || c == '{') {
      closers_ += c == '[' ? ']' : '}';
    } else if ((c == ']' || c == '}') && !closers_.empty()) {
      if (c != closers_.back())
        fail(in_quotes(closers_.substr(closers_.size() - 1)), in_quotes(std::string(1, c)));
      closers_.pop_back();
    }
  }

  // The head of a table has a name. toml++ aborts where none is behind [ or [[.
  void check_head() const {
    std::string_view name = text_.substr(at_ + 1);
    if (name.starts_with('['))
      name.remove_prefix(1);
    name.remove_prefix(std::min(name.find_first_not_of(kBlank), name.size()));
    if (name.empty() || name.front() == '\n')
      fail("a name behind '['", "the end of the line");
    // What is not ASCII is told when the scan gets there.
    if (utf8_bytes(name) == 1 && !contains(kBeginsName, name.front()))
      fail("a name behind '['", in_quotes(printable(name.substr(0, 1))));
  }

  // The longer quotes come first, as they begin like the shorter ones.
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

  // Takes a character in quotes, which may be the quotes' end, or an escape with what it escapes.
  void quoted(size_t bytes) {
    if (take(quotes_)) {
      in_ = In::plain;
      // The text """a""""" ends with two quotes of its own.
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
    if (const size_t escaped = utf8_bytes(text_.substr(at_)); escaped > 0)
      next_character(escaped);
  }

  // A line's end closes what should have been closed, so that TOML's reader finds that first.
  void end_line() {
    if (in_ == In::comment || quotes_.size() == 1)
      in_ = In::plain;
    dots_ = 0;
    begins_line_ = true;
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
  std::string_view quotes_;
  size_t dots_ = 0;
  bool begins_line_ = true;
  std::string closers_;  // of the open brackets and braces
};

}  // namespace

// The scanner throws where it finds something.
void check_toml(std::string_view text) {
  TomlScanner(text).scan();
}

// toml++ counts lines and columns in 32 bits without a sign.
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
