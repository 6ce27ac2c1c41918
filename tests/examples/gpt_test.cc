#include "examples/02_gpt/gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "examples/02_gpt/text.h"
#include "tests/data/files.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

const GptOptions kSmall{.vocabulary = 11, .layers = 2, .heads = 2, .width = 16, .context = 8};

Gpt small_gpt() {
  torch::manual_seed(3);
  return Gpt(kSmall);
}

std::string refused_sizes(const GptOptions& options) {
  try {
    Gpt model(options);
    return "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
}

TEST(Gpt, GivesLogitsForEveryToken) {
  auto model = small_gpt();
  EXPECT_EQ(model(torch::zeros({3, 8}, torch::kLong)).sizes(), (std::vector<int64_t>{3, 8, 11}));
  EXPECT_EQ(model(torch::zeros({1, 1}, torch::kLong)).sizes(), (std::vector<int64_t>{1, 1, 11}));
  EXPECT_THROW(model(torch::zeros({3, 9}, torch::kLong)), c10::Error);
}

TEST(Gpt, ALaterTokenChangesNoEarlierLogits) {
  auto model = small_gpt();
  const torch::NoGradGuard no_grad;
  const auto tokens = torch::randint(11, {2, 8}, torch::kLong);
  const auto before = model(tokens);
  auto changed = tokens.clone();
  changed.select(1, 5) = (tokens.select(1, 5) + 1).remainder(11);
  const auto after = model(changed);
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 5), after.narrow(1, 0, 5), 1e-5, 1e-6));
  for (int64_t at = 5; at < 8; ++at)
    EXPECT_FALSE(torch::allclose(before.select(1, at), after.select(1, at), 1e-5, 1e-6)) << at;
}

TEST(Gpt, TheOrderOfEarlierTokensMatters) {
  auto model = small_gpt();
  const torch::NoGradGuard no_grad;
  const auto one = model(torch::tensor({{1, 2, 3}})).select(1, 2);
  EXPECT_FALSE(torch::allclose(one, model(torch::tensor({{2, 1, 3}})).select(1, 2), 1e-5, 1e-6));
}

TEST(Gpt, KnowsNothingAtFirst) {
  auto model = small_gpt();
  const auto tokens = torch::randint(11, {16, 8}, torch::kLong);
  EXPECT_NEAR(next_token_loss(model(tokens), tokens.roll(1, 1)).item<double>(), std::log(11), 0.1);
}

TEST(Gpt, TheSeedDecidesTheWeights) {
  const auto one = small_gpt()->parameters();
  const auto same = small_gpt()->parameters();
  ASSERT_EQ(one.size(), same.size());
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(torch::equal(one[i], same[i]));
}

TEST(Gpt, EveryParameterLearns) {
  for (const bool tied : {false, true}) {
    GptOptions options = kSmall;
    options.tied = tied;
    Gpt model(options);
    const auto tokens = torch::randint(11, {2, 8}, torch::kLong);
    next_token_loss(model(tokens), tokens.roll(1, 1)).backward();
    for (const auto& item : model->named_parameters())
      EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0) << item.key();
    EXPECT_EQ(model->named_parameters().contains("head.weight"), !tied);
  }
}

TEST(Gpt, ImpossibleSizesAreRefused) {
  GptOptions options = kSmall;
  options.heads = 3;
  EXPECT_EQ(
      refused_sizes(options),
      "gpt: expected a width that the heads divide, got width 16 and 3 heads; change one of them");
  options = kSmall;
  options.vocabulary = 0;
  EXPECT_THAT(refused_sizes(options), HasSubstr("got vocabulary 0,"));
}

TEST(Gpt, ASampleGoesOnBeyondTheContextAndFollowsTheSeed) {
  auto model = small_gpt();
  const auto prompt = torch::tensor({1, 2, 3});
  const auto draw = [&](uint64_t seed) {
    torch::manual_seed(seed);
    return sample(model, prompt, 20, 1.0);
  };
  const auto drawn = draw(1);
  EXPECT_TRUE(torch::equal(drawn.narrow(0, 0, 3), prompt));
  EXPECT_EQ(drawn.size(0), 23);
  EXPECT_TRUE(torch::equal(drawn, draw(1)));
  EXPECT_FALSE(torch::equal(drawn, draw(2)));
}

TEST(Gpt, ATemperatureNearZeroTakesTheLikeliest) {
  auto model = small_gpt();
  const torch::NoGradGuard no_grad;
  const auto drawn = sample(model, torch::tensor({1, 2, 3}), 1, 1e-6);
  EXPECT_EQ(drawn[3].item<int64_t>(),
            model(torch::tensor({{1, 2, 3}})).select(1, 2).argmax().item<int64_t>());
}

class GptText : public ::testing::Test {
 protected:
  std::string refusal_of(const std::string& bytes, int64_t context) {
    test::put_file(path_, bytes);
    try {
      Text(path_, context).encode("z\n");
      return "read";
    } catch (const Error& error) {
      return error.what();
    }
  }

  test::TempFolder folder_;
  std::string path_ = folder_ / "a.txt";
};

TEST_F(GptText, ItsCharactersAreNumberedAndTheLastTenthValidates) {
  test::put_file(path_, "banana\nban\xff");  // 11 characters
  const Text text(path_, 0);
  EXPECT_EQ(text.vocabulary(), 5);
  EXPECT_TRUE(torch::equal(text.alphabet(), torch::tensor({10, 97, 98, 110, 255}, torch::kByte)));
  EXPECT_EQ(text.opening(), "banana\n");
  EXPECT_TRUE(torch::equal(text.encode("nab"), torch::tensor({3, 1, 2}, torch::kByte)));
  EXPECT_EQ(text.decode(text.train()) + "|" + text.decode(text.validation()), "banana\nban|\xff");
}

TEST_F(GptText, OneThatIsTooShortOrLacksACharacterIsRefused) {
  EXPECT_EQ(refusal_of("", 4),
            cat("text: expected at least 50 characters in '",
                path_,
                "' for a context of 4, got 0; give a longer --text or a smaller --context"));
  EXPECT_THAT(refusal_of(std::string(49, 'z'), 4), HasSubstr("got 49;"));
  EXPECT_THAT(refusal_of(std::string(50, 'z'), 4),
              HasSubstr("text: expected only characters of the text, got '\\x0a'"));
  EXPECT_EQ(refusal_of("z\n" + std::string(48, 'z'), 4), "read");
}

TEST(GptWindows, TargetsAreTheTokensAfter) {
  const Windows windows(torch::arange(20, torch::kByte), 4);
  EXPECT_EQ(windows.size(), 16) << "the last target is the last token";
  const auto [tokens, targets] = windows.get_batch(torch::tensor({0, 15}), false);
  EXPECT_TRUE(torch::equal(tokens, torch::tensor({{0, 1, 2, 3}, {15, 16, 17, 18}})));
  EXPECT_TRUE(torch::equal(targets, torch::tensor({{1, 2, 3, 4}, {16, 17, 18, 19}})));
}

TEST(GptWindows, AFewAreSpreadEvenlyWithinTheText) {
  const Windows windows(torch::arange(100, torch::kByte), 8, 5);
  EXPECT_EQ(windows.size(), 5);
  const auto starts = windows.get_batch(torch::arange(5), false).tokens.select(1, 0);
  EXPECT_TRUE(torch::equal(starts, torch::tensor({0, 19, 38, 57, 76})));
  EXPECT_EQ(Windows(torch::arange(100, torch::kByte), 8, 1024).size(), 12)
      << "no more than fit side by side";
}

}  // namespace
}  // namespace muster::testing
