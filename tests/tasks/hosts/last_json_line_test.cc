#include "muster/tasks/hosts/last_json_line.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "muster/base/error.h"

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

TEST(NotFiniteField, IsTheFirstThatIsNoNumber) {
  EXPECT_EQ(not_finite_field(R"({"epochs": 3, "loss": "NaN", "b": "inf"})"), "loss is NaN");
  EXPECT_EQ(not_finite_field(R"({"x": "-Infinity"})"), "x is -Infinity");
  EXPECT_EQ(
      not_finite_field(R"({"epochs": 3, "best": null, "lang": "nan", "clip": "inf", "none": ""})"),
      "")
      << "texts";
  EXPECT_EQ(not_finite_field(R"({"clip": "Infinity", "loss": 1})", {{"clip", "inf"}}), "")
      << "a parameter";
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
