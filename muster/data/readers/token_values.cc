// Token ids of 2 or 4 bytes in a file, in this machine's byte order, widened to the 8 bytes that an
// embedding takes. The largest is found on the way, for the check against the vocabulary.
#include "muster/data/readers/token_values.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

int64_t bytes_of_token(TokenType type) {
  return type == TokenType::uint16 ? 2 : 4;
}

template <class Token>
int64_t widen_tokens(const char* from, int64_t count, int64_t* to) {
  const auto* const tokens = reinterpret_cast<const Token*>(from);
  Token largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = tokens[i];
    largest = std::max(largest, tokens[i]);
  }
  return largest;
}

}  // namespace

int64_t count_tokens(std::string_view bytes, TokenType type, const std::string& name) {
  const int64_t each = bytes_of_token(type);
  if (std::ssize(bytes) % each == 0)
    return std::ssize(bytes) / each;
  throw invalid_argument("tokens: expected a whole number of tokens of ",
                         each,
                         " bytes in '",
                         name,
                         "', got ",
                         bytes.size(),
                         " bytes; see whether it is complete, and of this type");
}

void check_token_part(int64_t all, int64_t begin, int64_t count, const std::string& name) {
  if (begin >= 0 && count >= 0 && count <= all && begin <= all - count)
    return;
  throw invalid_argument("tokens: expected a part of ",
                         all,
                         " tokens in '",
                         name,
                         "', got ",
                         count,
                         " from ",
                         begin,
                         "; ask for tokens that exist");
}

// The result is the largest token, or 0 where there are none.
int64_t read_tokens(std::string_view bytes,
                    TokenType type,
                    const std::string& name,
                    int64_t begin,
                    int64_t count,
                    int64_t* to) {
  check_token_part(count_tokens(bytes, type, name), begin, count, name);
  const char* const from = bytes.data() + begin * bytes_of_token(type);
  return type == TokenType::uint16 ? widen_tokens<uint16_t>(from, count, to)
                                   : widen_tokens<uint32_t>(from, count, to);
}

}  // namespace muster
