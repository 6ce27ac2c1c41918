#include "muster/base/compress.h"

#include <gmock/gmock.h>

#include <random>

#include "muster/base/error.h"

namespace muster {
namespace {

using testing::HasSubstr;

constexpr size_t kRoom = size_t{1} << 20;

std::string error_of(std::string_view bytes, size_t max_bytes) {
  try {
    uncompressed(bytes, max_bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "no error";
}

TEST(Compress, GivesBackWhatItWasGiven) {
  std::mt19937 random(1);
  for (const size_t size : {0, 1, 2, 1000, 65'536, 1'000'000}) {
    std::string noise(size, '\0');
    for (char& byte : noise)
      byte = static_cast<char>(random());
    EXPECT_EQ(uncompressed(compressed(noise), kRoom), noise) << size;
    EXPECT_EQ(uncompressed(compressed(std::string(size, 'a')), kRoom), std::string(size, 'a'));
  }
}

TEST(Compress, KnowsItsOwnFromJson) {
  EXPECT_TRUE(is_compressed(compressed("")));
  EXPECT_TRUE(is_compressed(compressed("{}")));
  EXPECT_FALSE(is_compressed("{}"));
  EXPECT_FALSE(is_compressed(""));
}

TEST(Compress, ARepetitionTakesLittle) {
  EXPECT_LT(compressed(std::string(1'000'000, 'a')).size(), 10'000U);
}

TEST(Compress, TakesNoMoreThanItsBound) {
  const std::string bytes = compressed(std::string(1'000'000, 'a'));
  EXPECT_EQ(uncompressed(bytes, 1'000'000).size(), 1'000'000U);
  EXPECT_THAT(error_of(bytes, 999'999), HasSubstr("expected at most"));
}

TEST(Compress, RefusesWhatIsDamagedOrCutShort) {
  std::string text;
  for (int i = 0; i < 1000; ++i)
    text += std::to_string(i);
  const std::string bytes = compressed(text);
  for (size_t size = 0; size < bytes.size(); size += 7)
    EXPECT_THAT(error_of(bytes.substr(0, size), kRoom), HasSubstr("damaged or cut short")) << size;
  EXPECT_THAT(error_of(bytes + "x", kRoom), HasSubstr("damaged or cut short"));
  std::string changed = bytes;
  changed[bytes.size() / 2] ^= 1;
  EXPECT_THAT(error_of(changed, kRoom), HasSubstr("damaged or cut short"));
}

TEST(Compress, OnlyLargeTextIsPacked) {
  const std::string large(5'000, 'y');
  for (const std::string& text : {std::string(), std::string("{}"), large})
    EXPECT_EQ(unpacked(packed(text)), text);
  EXPECT_EQ(packed("{}"), "{}");
  EXPECT_LT(packed(large).size(), large.size() / 10);
  EXPECT_THROW(unpacked(packed(large).substr(0, 10)), Error);
}

}  // namespace
}  // namespace muster
