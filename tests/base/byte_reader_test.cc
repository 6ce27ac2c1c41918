#include "muster/base/byte_reader.h"

#include <gmock/gmock.h>

namespace muster {
namespace {

TEST(ByteReader, TakesWhatIsThereAndNoMore) {
  ByteReader reader("12 abcd", "text");
  EXPECT_EQ(reader.take_number(' '), 12U);
  EXPECT_EQ(reader.left(), 4U);
  EXPECT_THROW(reader.take(5), Error);
  EXPECT_THROW(reader.take(SIZE_MAX), Error);
  EXPECT_THROW(reader.take_value<uint64_t>(), Error);
  EXPECT_THROW(reader.end(), Error);
  EXPECT_EQ(reader.take_value<char>(), 'a');
  EXPECT_EQ(reader.take(3), "bcd");
  EXPECT_EQ(reader.take(0), "");
  reader.end();
}

TEST(ByteReader, ANumberIsDigitsAndWhatEndsThem) {
  for (const char* text : {"", " ", "12", "-1 ", "x ", "99999999999999999999999 ", "1x "})
    EXPECT_THROW(ByteReader(text, "text").take_number(' '), Error) << text;
}

}  // namespace
}  // namespace muster
