#include "muster/trace/call_text.h"

#include <gmock/gmock.h>

#include <array>
#include <vector>

namespace muster {
namespace {

std::string shape_text(const char* type, const std::vector<int64_t>& sizes, size_t size = 48) {
  std::string field(size, '#');
  put_shape(field.data(), size, type, sizes.data(), sizes.size());
  return field.substr(0, field.find('\0'));
}

TEST(CallText, Shapes) {
  EXPECT_EQ(shape_text("f32", {1000}), "f32[1000]");
  EXPECT_EQ(shape_text("f32", {16, 3, 7}), "f32[16, 3, 7]");
  EXPECT_EQ(shape_text("i64", {}), "i64[]");
  EXPECT_EQ(shape_text("", {}), "");
}

TEST(CallText, AShapeThatDoesNotFitSaysSo) {
  for (size_t size = 12; size < 40; ++size) {
    const std::string text = shape_text("f32", {1234567, 1234567, 1234567}, size);
    EXPECT_LT(text.size(), size);
    EXPECT_TRUE(text == "f32[1234567, 1234567, 1234567]" || text.ends_with("…]")) << text;
  }
}

TEST(CallText, TextIsCutAndEnds) {
  std::array<char, 8> field;
  field.fill('#');
  put_text(field.data(), field.size(), "all_reduce");
  EXPECT_STREQ(field.data(), "all_red");
  put_text(field.data(), field.size(), "");
  EXPECT_STREQ(field.data(), "");
}

TEST(CallText, WhatIsReadable) {
  EXPECT_EQ(readable("grün …"), "grün …");
  EXPECT_EQ(readable("a\x1b[31m\n"), "a?[31m?");
  EXPECT_EQ(readable("gr\xc3"), "gr?");             // cut within a character
  EXPECT_EQ(readable("\xc0\xaf"), "??");            // longer than needed
  EXPECT_EQ(readable("\xed\xa0\x80"), "???");       // half of a pair
  EXPECT_EQ(readable("\xf4\x90\x80\x80"), "????");  // beyond Unicode
  EXPECT_EQ(readable("\xff"
                     "a"),
            "?a");
}

}  // namespace
}  // namespace muster
