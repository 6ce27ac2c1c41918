#include "muster/data/gzip.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "muster/base/error.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kEnough = 1 << 24;

std::string sample(size_t size) {
  std::string text;
  for (size_t i = 0; text.size() < size; ++i)
    text += std::to_string(i * i) + ",";
  return text.substr(0, size);
}

TEST(Gzip, UnpacksAnySize) {
  for (const size_t size : {0, 1, 65535, 65536, 65537, 3'000'000})
    EXPECT_EQ(gunzip(test::gzip(sample(size)), kEnough, "x"), sample(size)) << size;
}

TEST(Gzip, UnpacksSeveralMembers) {
  EXPECT_EQ(gunzip(test::gzip("one ") + test::gzip("") + test::gzip("two"), kEnough, "x"),
            "one two");
}

TEST(Gzip, RefusesEveryTruncation) {
  const auto whole = test::gzip(sample(5000));
  for (size_t size = 2; size < whole.size(); ++size)
    EXPECT_THROW(gunzip(whole.substr(0, size), kEnough, "x"), Error) << size;
  EXPECT_THAT(message_of([&] { gunzip(whole.substr(0, 100), kEnough, "file.gz"); }),
              AllOf(HasSubstr("file.gz"), HasSubstr("cut short after 100 bytes")));
}

TEST(Gzip, RefusesDamage) {
  auto bytes = test::gzip(sample(5000));
  bytes[bytes.size() - 6] ^= 1;  // in the checksum
  EXPECT_THAT(message_of([&] { gunzip(bytes, kEnough, "x"); }), HasSubstr("damaged"));
  EXPECT_THAT(message_of([&] { gunzip(test::gzip("a") + "rest", kEnough, "x"); }),
              HasSubstr("4 bytes of something else"));
}

TEST(Gzip, BoundsWhatItUnpacks) {
  // NOLINTNEXTLINE(bugprone-string-constructor): a bomb is large
  const auto bomb = test::gzip(std::string(50'000'000, 'a'));
  EXPECT_LT(bomb.size(), 100'000U);
  EXPECT_THAT(message_of([&] { gunzip(bomb, 1 << 20, "bomb"); }),
              HasSubstr("at most 1.0 MiB in 'bomb'"));
  EXPECT_EQ(gunzip(test::gzip("abcd"), 4, "x"), "abcd");
  EXPECT_THROW(gunzip(test::gzip("abcde"), 4, "x"), Error);
}

TEST(ReadDataFile, TellsGzipByContentAndRefusesOtherThings) {
  const test::TempFolder folder;
  test::put_file(folder / "a", test::gzip("text"));
  test::put_file(folder / "b.gz", "plain");
  EXPECT_EQ(read_data_file(folder / "a", kEnough), "text");
  EXPECT_EQ(read_data_file(folder / "b.gz", kEnough), "plain");
  EXPECT_THAT(message_of([&] { read_data_file(folder / "none", kEnough); }),
              HasSubstr("No such file"));
  EXPECT_THAT(message_of([&] { read_data_file(folder.path(), kEnough); }),
              HasSubstr("got a folder"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { read_data_file(folder / "pipe", kEnough); }),
              HasSubstr("special file"));
  EXPECT_THROW(read_data_file(folder / "b.gz", 4), Error);
}

}  // namespace
}  // namespace muster
