#include "muster/store/frame.h"

#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;

const std::string kKey(32, 'k');

std::string frame(FrameWriter& writer, const std::string& body) {
  std::string bytes;
  writer.append(bytes, [&](std::string& out) { out += body; });
  return bytes;
}

TEST(Frame, OpensWhatWasClosedInOrder) {
  FrameWriter writer(kKey);
  FrameReader reader(kKey);
  std::string bytes;
  const std::vector<std::string> bodies = {"first", "", std::string(100'000, 'x'), "last"};
  for (const auto& body : bodies)
    bytes += frame(writer, body);
  std::string_view rest = bytes;
  for (const auto& body : bodies)
    EXPECT_TRUE(reader.take(rest) == body);
  EXPECT_TRUE(rest.empty());
  EXPECT_FALSE(reader.take(rest));
}

TEST(Frame, WaitsForTheWholeAndSaysHowMuchIsLacking) {
  FrameWriter writer(kKey);
  FrameReader reader(kKey);
  const std::string bytes = frame(writer, "body");
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::string_view part = std::string_view(bytes).substr(0, size);
    EXPECT_FALSE(reader.take(part));
    EXPECT_EQ(part.size(), size);
    EXPECT_EQ(FrameReader::lacking(part),
              size < kFrameSizeBytes ? kFrameSizeBytes - size : bytes.size() - size);
  }
  std::string_view whole = bytes;
  EXPECT_EQ(*reader.take(whole), "body");
}

TEST(Frame, AnyChangedBitIsRefused) {
  FrameWriter writer(kKey);
  const std::string good = frame(writer, "body");
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    FrameReader reader(kKey);
    std::string_view rest = bad;
    try {
      EXPECT_FALSE(reader.take(rest)) << "bit " << bit;  // a larger size: still waiting for its end
      EXPECT_LT(bit, kFrameSizeBytes * 8);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
    }
  }
}

TEST(Frame, RepeatedSkippedAndForeignOnesAreRefused) {
  FrameWriter writer(kKey);
  const std::string first = frame(writer, "same");
  const std::string second = frame(writer, "same");
  EXPECT_NE(first, second);
  FrameReader reader(kKey);
  std::string_view rest = first;
  EXPECT_TRUE(reader.take(rest));
  rest = first;
  error_of(ErrorCode::io, [&] { reader.take(rest); });
  FrameReader skipping(kKey);
  rest = second;
  error_of(ErrorCode::io, [&] { skipping.take(rest); });
  FrameReader foreign(std::string(32, 'f'));
  rest = first;
  error_of(ErrorCode::io, [&] { foreign.take(rest); });
}

TEST(Frame, ASizeBeyondTheLimitIsRefusedBeforeItsBytesCome) {
  FrameReader reader(kKey);
  const std::string header = "\xff\xff\xff\xff";
  std::string_view rest = header;
  error_of(ErrorCode::io, [&] { reader.take(rest); });
}

}  // namespace
}  // namespace muster
