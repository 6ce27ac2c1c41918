#include <cstdlib>
#include <cstring>
#include <vector>

#include "muster/data/readers/token_values.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

// The first 16 bytes say which tokens are asked for, the rest is the file.
constexpr size_t kAsked = 16;
constexpr int64_t kRoom = 1 << 14;

template <class Token>
void check_tokens(const std::string& file, TokenType type, int64_t begin, int64_t count) {
  answer_or_error([&] {
    std::vector<int64_t> values(kRoom, -1);
    if (count_tokens(file, type, "fuzz") > kRoom)
      return;
    const int64_t largest = read_tokens(file, type, "fuzz", begin, count, values.data());
    bool has_largest = count == 0 && largest == 0;
    for (int64_t i = 0; i < count; ++i) {
      Token token = 0;
      std::memcpy(
          &token, file.data() + static_cast<size_t>(begin + i) * sizeof(Token), sizeof(Token));
      const int64_t value = values[static_cast<size_t>(i)];
      if (value != static_cast<int64_t>(token) || value > largest)
        std::abort();
      has_largest = has_largest || value == largest;
    }
    if (!has_largest || values[static_cast<size_t>(count)] != -1)
      std::abort();
  });
}

}  // namespace

void fuzz_tokens(const std::string& text) {
  if (text.size() < kAsked)
    return;
  int64_t asked[2];
  std::memcpy(asked, text.data(), kAsked);
  const std::string file = text.substr(kAsked);
  for (const int64_t most : {int64_t{INT64_MAX}, int64_t{64}}) {
    check_tokens<uint16_t>(file, TokenType::uint16, asked[0] % most, asked[1] % most);
    check_tokens<uint32_t>(file, TokenType::uint32, asked[0] % most, asked[1] % most);
  }
}

}  // namespace muster
