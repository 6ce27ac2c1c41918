// Tokens as they lie in a file, one after the other. Used by tokens.h; knows no tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

enum class TokenType { uint16, uint32 };

// `name` is what messages call the file.
// Throws: invalid_argument when the bytes are no whole number of tokens.
int64_t count_tokens(std::string_view bytes, TokenType type, const std::string& name);

// Throws: invalid_argument when `count` tokens from `begin` on are not among `all`.
void check_token_part(int64_t all, int64_t begin, int64_t count, const std::string& name);

// Those from `begin` on, to `to`. Gives the largest, 0 of none. `bytes` begin where a token may
// (aligned). Throws: as both above.
int64_t read_tokens(std::string_view bytes,
                    TokenType type,
                    const std::string& name,
                    int64_t begin,
                    int64_t count,
                    int64_t* to);

}  // namespace muster
