#include "muster/data/readers/tokens.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <set>

#include "muster/base/error.h"
#include "muster/data/loader.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// 0, 1, 2, …, plus `first`.
template <class Token>
std::string token_bytes(int count, Token first = 0) {
  std::vector<Token> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<Token>(first + i);
  return {reinterpret_cast<char*>(tokens.data()), tokens.size() * sizeof(Token)};
}

TEST(Tokens, GivesWindowsOneAfterTheOther) {
  const test::TempFolder folder;
  test::put_file(folder / "a.bin", token_bytes<uint16_t>(26, 65500));
  const TokenFile file(folder / "a.bin", TokenType::uint16, 8);
  EXPECT_EQ(file.num_tokens(), 26);
  ASSERT_EQ(file.size(), 3);
  Generator rng(0, 0, 0);
  const auto window = file.get(2, rng);
  EXPECT_TRUE(torch::equal(window.tokens, torch::arange(65516, 65524)));
  EXPECT_TRUE(torch::equal(window.targets, torch::arange(65517, 65525)));
  DataLoader loader(file, {.batch_size = 3, .workers = 1});
  for (const auto& batch : loader)
    EXPECT_TRUE(torch::equal(batch.tokens, torch::arange(65500, 65524).view({3, 8})));
}

TEST(Tokens, GivesWindowsThatBeginAnywhere) {
  const test::TempFolder folder;
  test::put_file(folder / "a.bin", token_bytes<uint32_t>(20, 1000000));
  const TokenFile file(folder / "a.bin", TokenType::uint32, 8, {.random = true, .windows = 500});
  ASSERT_EQ(file.size(), 500);
  std::set<int64_t> begins;
  for (int64_t i = 0; i < file.size(); ++i) {
    Generator rng(1, 2, i);
    const auto window = file.get(i, rng);
    const auto begin = window.tokens[0].item<int64_t>();
    begins.insert(begin);
    ASSERT_TRUE(torch::equal(window.targets, torch::arange(begin + 1, begin + 9)));
  }
  EXPECT_EQ(begins.size(), 12U);  // every place at which a window and its targets fit
  EXPECT_EQ(*begins.begin(), 1000000);
}

TEST(Tokens, RefusesNumbersThatAreWider) {
  const test::TempFolder folder;
  const auto refusal = [&](const std::string& bytes, TokenType type) {
    test::put_file(folder / "a.bin", bytes);
    return message_of([&] { TokenFile(folder / "a.bin", type, 8, {.vocabulary = 50257}); });
  };
  EXPECT_THAT(refusal(token_bytes<uint32_t>(1000), TokenType::uint16),
              AllOf(HasSubstr("expected tokens of 2 bytes"),
                    HasSubstr("got 0 for every second of the first 2000")));
  EXPECT_THAT(refusal(token_bytes<int64_t>(9000), TokenType::uint16), HasSubstr("first 4096"));
  EXPECT_THAT(refusal(token_bytes<int64_t>(1000), TokenType::uint32), HasSubstr("of 4 bytes"));
}

TEST(Tokens, TakesTokensThatAreOftenZero) {
  const test::TempFolder folder;
  std::string some_zeros;
  for (int i = 0; i < 250; ++i)
    some_zeros += token_bytes<uint16_t>(1, 7) + token_bytes<uint16_t>(2);
  for (const std::string& bytes : {some_zeros, std::string(2000, '\0')}) {
    test::put_file(folder / "a.bin", bytes);
    EXPECT_EQ(TokenFile(folder / "a.bin", TokenType::uint16, 8).num_tokens(),
              std::ssize(bytes) / 2);
  }
}

TEST(Tokens, RefusesFilesThatHaveAHead) {
  const test::TempFolder folder;
  const auto refusal = [&](const std::string& head) {
    test::put_file(folder / "a.bin", head + token_bytes<uint16_t>(600));
    return message_of([&] { TokenFile(folder / "a.bin", TokenType::uint16, 8); });
  };
  EXPECT_THAT(refusal("\x93NUMPY"), HasSubstr("got a .npy file; write the tokens alone: array.to"));
  EXPECT_THAT(refusal(token_bytes<int32_t>(1, 20240520)), HasSubstr("llm.c's head of 1024 bytes"));
  EXPECT_THAT(refusal("PK\x03\x04"), HasSubstr("got an archive"));
}

TEST(Tokens, RefusesFilesThatDoNotFit) {
  const test::TempFolder folder;
  const auto refusal =
      [&](const std::string& bytes, int64_t context, const TokenFileOptions& options = {}) {
        test::put_file(folder / "a.bin", bytes);
        return message_of([&] {
          Generator rng(0, 0, 0);
          TokenFile(folder / "a.bin", TokenType::uint16, context, options).get(0, rng);
        });
      };
  EXPECT_THAT(refusal("abc", 1),
              AllOf(HasSubstr("a.bin"), HasSubstr("of 2 bytes"), HasSubstr("got 3 bytes")));
  EXPECT_THAT(refusal("", 1), HasSubstr("more than 1 tokens"));
  EXPECT_THAT(refusal("abcd", 2), HasSubstr("more than 2 tokens"));
  EXPECT_THAT(refusal("abcd", 0), HasSubstr("context of at least 1"));
  EXPECT_THAT(refusal(token_bytes<uint16_t>(9), 8, {.vocabulary = 8}),
              AllOf(HasSubstr("tokens below 8"), HasSubstr("got 8 between token 0 and 9")));
  test::put_file(folder / "a.bin", token_bytes<uint16_t>(9));
  const TokenFile file(folder / "a.bin", TokenType::uint16, 4);
  Generator rng(0, 0, 0);
  EXPECT_THAT(message_of([&] { file.get(2, rng); }), HasSubstr("a window from 0 to 1"));
  EXPECT_THAT(message_of([&] { file.tokens(5, 5); }), HasSubstr("5 from 5"));
  EXPECT_THAT(message_of([&] { file.tokens(-1, 2); }), HasSubstr("2 from -1"));
}

}  // namespace
}  // namespace muster
