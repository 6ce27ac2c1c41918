#include "muster/base/hex.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Hex, OfBytes) {
  EXPECT_EQ(to_hex(std::string_view("\x00\x7f\xff", 3)), "007fff");
  EXPECT_EQ(to_hex(""), "");
}

TEST(Hex, OfANumberAreItsLastDigits) {
  EXPECT_EQ(to_hex(0x74a1, 4), "74a1");
  EXPECT_EQ(to_hex(0x74a1, 8), "000074a1");
  EXPECT_EQ(to_hex(0x74a1, 2), "a1");
}

TEST(Escaped, MakesForeignTextHarmless) {
  EXPECT_EQ(escaped("a\x1b[31m\xff\n", 40), "a\\x1b[31m\\xff\\x0a");
  const std::string forty(40, 'x');
  EXPECT_EQ(escaped(forty + forty, 40), forty + "...");
}

}  // namespace
}  // namespace muster
