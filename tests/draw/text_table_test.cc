#include "muster/draw/text_table.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(TextTable, AlignsLeftAndRight) {
  EXPECT_EQ(format_table({{"n", true}, {"name"}, {"x", true}},
                         {{"1", "a", "10"}, {"100", "long name", ""}}),
            "  n  name        x\n"
            "  1  a          10\n"
            "100  long name\n");
}

TEST(TextTable, NoRows) {
  EXPECT_EQ(format_table({{"a"}, {"b"}}, {}), "a  b\n");
}

TEST(TextTable, Utf8CountsCharacters) {
  EXPECT_EQ(format_table({{"a"}, {"b"}}, {{"\xc3\xbc", "x"}, {"yy", "z"}}),
            "a   b\n\xc3\xbc   x\nyy  z\n");
}

TEST(TextTable, ControlCharactersAreShown) {
  EXPECT_EQ(format_table({{"a"}}, {{"x\x1b[2Jy\nz"}}), "a\nx?[2Jy?z\n");
}

}  // namespace
}  // namespace muster
