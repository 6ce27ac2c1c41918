#include "muster/base/strings.h"

#include <gmock/gmock.h>

#include "muster/base/json_words.h"
#include "muster/base/utf8.h"

namespace muster {
namespace {

using testing::ElementsAre;

TEST(Cat, JoinsTextAndNumbers) {
  const std::string text = "text";
  EXPECT_EQ(cat(), "");
  EXPECT_EQ(cat("a ", text, ' ', std::string_view("view")), "a text view");
  EXPECT_EQ(cat(1, " ", -2L, " ", uint64_t{18446744073709551615U}, " ", INT64_MIN),
            "1 -2 18446744073709551615 -9223372036854775808");
  EXPECT_EQ(cat(true, ",", false, ",", 'c', ",", uint8_t{7}), "true,false,c,7");
}

TEST(Cat, WritesNumbersAsShortAsTheyAreClear) {
  EXPECT_EQ(cat(0.5, " ", 1.0, " ", -2.25F), "0.5 1 -2.25");
  EXPECT_EQ(cat(1.0 / 3), "0.333333");
  EXPECT_EQ(cat(1e300), "1e+300");
}

TEST(Split, CutsAtEverySeparator) {
  EXPECT_THAT(split("a,b", ','), ElementsAre("a", "b"));
  EXPECT_THAT(split("a,,b,", ','), ElementsAre("a", "", "b", ""));
  EXPECT_THAT(split("", ','), ElementsAre(""));
}

TEST(JoinText, PutsTheSeparatorBetween) {
  EXPECT_EQ(join(std::vector<std::string>{"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(join(std::vector<int>{1, 2}, "-"), "1-2");
  EXPECT_EQ(join(std::vector<int>{}, "-"), "");
  EXPECT_EQ(join_first({"a", "b"}, ", ", 2), "a, b");
  EXPECT_EQ(join_first({"a", "b", "c", "d"}, ", ", 2), "a, b and 2 more");
}

TEST(Trim, TakesBlanksFromBothEnds) {
  EXPECT_EQ(trim(" \t a b \r\n"), "a b");
  EXPECT_EQ(trim(" \n "), "");
  EXPECT_EQ(trim(""), "");
}

TEST(WordsOf, AreWhatStandsBetweenBlanks) {
  EXPECT_THAT(words_of("a  b\t\nc "), ElementsAre("a", "b", "c"));
  EXPECT_THAT(words_of("  one"), ElementsAre("one"));
  EXPECT_THAT(words_of(" \t"), ElementsAre());
}

TEST(ParseInt, TakesWholeDecimalIntegersOnly) {
  EXPECT_EQ(parse_int("0"), 0);
  EXPECT_EQ(parse_int("-12"), -12);
  EXPECT_EQ(parse_int("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_int("-9223372036854775808"), INT64_MIN);
  for (const char* text : {"", "+1", "12x", " 1", "1 ", "1.0", "0x10", "9223372036854775808", "-"})
    EXPECT_EQ(parse_int(text), std::nullopt) << text;
}

TEST(ParseNumber, TakesNumbersWithinTheBoundsOnly) {
  EXPECT_EQ(parse_number("1", 1, 3), 1);
  EXPECT_EQ(parse_number("3", 1, 3), 3);
  EXPECT_EQ(parse_count("2147483647"), INT32_MAX);
  for (const char* text : {"", "0", "4", "-1", "2x", "2147483648", "99999999999999999999"})
    EXPECT_EQ(parse_number(text, 1, 3), std::nullopt) << text;
  EXPECT_EQ(parse_count("2147483648"), std::nullopt);
}

TEST(ParseAs, TakesTheWholeTextAsANumberOfTheType) {
  EXPECT_EQ(parse_as<uint64_t>("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(parse_as<int>("2147483648"), std::nullopt);
  EXPECT_EQ(parse_as<uint32_t>("fF", 16), 255U);
  EXPECT_EQ(parse_as<double>("-2.5e1"), -25.0);
  for (const char* text : {"", " 1", "+1", "1 ", "1x"})
    EXPECT_EQ(parse_as<double>(text), std::nullopt) << text;
}

TEST(Utf8, IsCutAndCountedByWholeCharacters) {
  EXPECT_EQ(cut_text("a\u00e9b", 2), "a");
  EXPECT_EQ(cut_text("a\u00e9b", 3), "a\u00e9");
  EXPECT_EQ(cut_text("ab", 2), "ab");
  EXPECT_EQ(count_characters("a\u00e9\u20ac\U0001f600"), 4);
  EXPECT_EQ(first_character("\u20acx").code, 0x20acU);
  EXPECT_EQ(first_character("\U0001f600").bytes, 4U);
  for (const char* text : {"", "\x80", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"})
    EXPECT_EQ(first_character(text).bytes, 0U) << text;
}

TEST(LowerCase, IsOfLettersOfAsciiAlone) {
  EXPECT_EQ(lower_case("A100-SXM4 \xc3\x9c"), "a100-sxm4 \xc3\x9c");
}

TEST(JsonWords, AreThoseOfTheUser) {
  EXPECT_EQ(json_words("[json.exception.out_of_range.403] key 'at' not found"),
            "key 'at' not found");
  EXPECT_EQ(json_words("[json.exception.type_error.304] cannot use at() with array"),
            "a JSON array for an object");
  EXPECT_EQ(json_words("[json.exception.type_error.306] cannot use value() with null"),
            "a JSON null for an object");
  for (const char* text : {"cannot use push_back() with object", "cannot use at() with object"})
    EXPECT_EQ(json_words(text), text);
  EXPECT_EQ(json_words("cannot use a file"), "cannot use a file");
}

}  // namespace
}  // namespace muster
