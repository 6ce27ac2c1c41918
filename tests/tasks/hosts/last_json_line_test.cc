#include "muster/tasks/hosts/last_json_line.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

class LastJsonLine : public testing::Test {
 protected:
  ~LastJsonLine() override { std::filesystem::remove(path_); }

  std::string of(const std::string& text, size_t max_bytes = kLastJsonBytes) {
    std::ofstream(path_, std::ios::binary) << text;
    return last_json_line(path_, max_bytes);
  }

  const std::string path_ =
      testing::TempDir() + "last_json_line_test_" + std::to_string(::getpid());
};

TEST_F(LastJsonLine, IsTheLastThatIsAnObject) {
  EXPECT_EQ(of("{\"a\": 1}\nwords\n{\"a\": 2}\nmore\n[3]\n4\n"), "{\"a\": 2}");
  EXPECT_EQ(of("{\"a\": 1}\n{\"a\": 2"), "{\"a\": 1}");
  EXPECT_EQ(of("x\n  {\"a\": 1} \r\n\n\n"), "{\"a\": 1}");
  EXPECT_EQ(of("{\"a\": 1}"), "{\"a\": 1}");
  EXPECT_EQ(of("[0] {\"a\": 3}\n[1] words\n[ ] {}\n[x] {}\n"), "{\"a\": 3}") << "of a rank";
  EXPECT_EQ(of("  0%|  | 0/2\r100%|##| 2/2\r          \r{\"a\": 4}\n"), "{\"a\": 4}")
      << "behind a progress bar";
  EXPECT_EQ(of("{}{}\n"), "");
  EXPECT_EQ(of(""), "");
}

TEST_F(LastJsonLine, PythonsNamesOfNumbersBecomeTexts) {
  EXPECT_EQ(of(R"({"a": 1})"
               "\n"
               R"({"loss": NaN, "l": [Infinity, -Infinity], "t": "NaN \" NaN"})"
               "\n"),
            R"({"loss": "NaN", "l": ["Infinity", "-Infinity"], "t": "NaN \" NaN"})");
  EXPECT_EQ(of(R"({"a": -nan, "b": inf, "c": -inf, "d": nan})"),
            R"({"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": "NaN"})");
  EXPECT_EQ(of(R"({"a": NaNa})"), "");
}

// An earlier line must not stand for one with such a number.
TEST_F(LastJsonLine, NumbersBeyondADoubleBecomeTexts) {
  const auto last = [&](const std::string& line) {
    return of(cat("{\"a\": 1}\n", line, "\n"));
  };
  EXPECT_EQ(last(R"({"a": 1e400, "b": -1.5E+999, "c": 1e-999})"),
            R"({"a": "Infinity", "b": "-Infinity", "c": 1e-999})");
  EXPECT_EQ(last(cat("{\"a\": 1", std::string(400, '0'), "}")), R"({"a": "Infinity"})");
  EXPECT_EQ(last(R"({"a": +Inf, "b": -NaN, "c": INF, "d": -nan(ind), "e": [infinity,2]})"),
            R"({"a": "Infinity", "b": "NaN", "c": "Infinity", "d": "NaN", "e": ["Infinity",2]})");
  EXPECT_EQ(last(R"({"a": 1e400x})"), R"({"a": 1})");
}

// A double would round them.
TEST_F(LastJsonLine, WholeNumbersOfMoreThan64BitsKeepTheirDigits) {
  EXPECT_EQ(of(R"({"a": 18446744073709551615, "b": -9223372036854775808, "c": [1e20, 0.1]})"),
            R"({"a": 18446744073709551615, "b": -9223372036854775808, "c": [1e20, 0.1]})");
  EXPECT_EQ(of(R"({"a": 18446744073709551616, "b": [-9223372036854775809]})"),
            R"({"a": "18446744073709551616", "b": ["-9223372036854775809"]})");
}

TEST_F(LastJsonLine, BytesThatAreNoCharacterAreShown) {
  EXPECT_EQ(of("{\"a\": 1}\n{\"name\": \"caf\xe9 \xe2\x82\", \"b\": \"\xc3\xa9\"}\n"),
            "{\"name\": \"caf\uFFFD \uFFFD\uFFFD\", \"b\": \"\u00e9\"}");
}

TEST(NotFiniteField, IsTheFirstThatIsNoNumber) {
  EXPECT_EQ(not_finite_field(R"({"epochs": 3, "loss": "NaN", "b": "inf"})"), "loss is NaN");
  EXPECT_EQ(not_finite_field(R"({"x": "-Infinity"})"), "x is -Infinity");
  EXPECT_EQ(
      not_finite_field(R"({"epochs": 3, "best": null, "lang": "nan", "clip": "inf", "none": ""})"),
      "")
      << "texts";
  EXPECT_EQ(not_finite_field(R"({"clip": "Infinity", "loss": 1})", {{"clip", "inf"}}), "")
      << "a parameter";
  EXPECT_EQ(not_finite_field(R"({"n": 1, "test": {"runs": [{"acc": 1}, {"acc": "NaN"}]}})"),
            "test.runs[1].acc is NaN");
  EXPECT_EQ(not_finite_field(""), "");
}

TEST_F(LastJsonLine, OnlyTheEndIsRead) {
  const std::string line = "{\"a\": 1}";
  EXPECT_EQ(of(line + "\n" + std::string(100, 'x') + "\n", 50), "");
  EXPECT_EQ(of("yyy\n" + line, line.size()), line);  // it begins exactly there
  EXPECT_EQ(of("{\"b\": " + line + "}", line.size() + 1), "");
  EXPECT_EQ(of(std::string(3 << 20, 'x') + "\n" + line + "\n"), line);
  EXPECT_EQ(of(line + "\n" + std::string(3 << 20, '{')), "");
}

TEST_F(LastJsonLine, DeepNestingIsNoResult) {
  const std::string deep = "{\"a\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(of("{\"a\": 1}\n" + deep + "\n"), "{\"a\": 1}");
}

TEST_F(LastJsonLine, AFileThatIsNotThere) {
  EXPECT_THROW(last_json_line(path_ + "-missing"), Error);
}

}  // namespace
}  // namespace muster
