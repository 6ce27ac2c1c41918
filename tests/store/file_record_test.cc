#include "muster/store/file_record.h"

#include "tests/store/support.h"

namespace muster {
namespace {

TEST(FileRecord, SurvivesAndIsTakenInOrder) {
  const std::string bytes = encode_record({FileRecord::Kind::set, std::string("k\0", 2), "v"}) +
                            encode_record({FileRecord::Kind::remove, "", ""});
  std::string_view rest = bytes;
  const auto first = take_record(rest);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->kind, FileRecord::Kind::set);
  EXPECT_EQ(first->key, std::string("k\0", 2));
  EXPECT_EQ(first->value, "v");
  const auto second = take_record(rest);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->kind, FileRecord::Kind::remove);
  EXPECT_TRUE(rest.empty());
}

TEST(FileRecord, CutOrChangedItIsNone) {
  const std::string good = encode_record({FileRecord::Kind::set, "key", "value"});
  for (size_t size = 0; size < good.size(); ++size) {
    std::string_view part = std::string_view(good).substr(0, size);
    EXPECT_FALSE(take_record(part));
    EXPECT_EQ(part.size(), size);
  }
  for (size_t byte = 0; byte < good.size(); ++byte) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 0x10);
    std::string_view rest = bad;
    EXPECT_FALSE(take_record(rest)) << byte;
  }
}

TEST(FileRecord, ReadsItsOwnHeadersOnly) {
  const auto header =
      decode_header(encode_header({.world_size = 4, .generation = 2, .boot_id = "b-1"}));
  ASSERT_TRUE(header);
  EXPECT_EQ(header->world_size, 4);
  EXPECT_EQ(header->generation, 2);
  EXPECT_EQ(header->boot_id, "b-1");
  for (const std::string text :
       {"", "4", "4 2", "0 2 b", "-1 2 b", "x 2 b", "4 2 b c", "99999999999 2 b"})
    EXPECT_FALSE(decode_header(text)) << text;
}

}  // namespace
}  // namespace muster
