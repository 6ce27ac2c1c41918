#include "muster/checkpoint/files/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;
using ValueKind = PickledValue::Kind;
using ::testing::HasSubstr;

std::string refusal(std::string_view bytes) {
  try {
    read_pickle(bytes, "a.pth");
    return "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
}

TEST(Pickle, NumbersOfAnySize) {
  const std::pair<std::string, int64_t> numbers[] = {
      {"K\xff", 255},
      {std::string("M\x01\x02", 3), 513},
      {"J\xfe\xff\xff\xff", -2},
      {std::string("\x8a\x00", 2), 0},
      {"\x8a\x01\xff", -1},
      {std::string("\x8a\x03\x00\x00\x01", 5), 65536},
      {"\x88", 1}};
  for (const auto& [bytes, number] : numbers) {
    const Pickle pickle = read_pickle(bytes + "., and more", "a.pth");
    EXPECT_EQ(pickle.root->kind, ValueKind::number);
    EXPECT_EQ(pickle.root->number, number);
    EXPECT_EQ(pickle.bytes, bytes.size() + 1);
  }
  EXPECT_EQ(read_pickle("G\x3f\xf8\0\0\0\0\0\0."sv, "a.pth").root->real, 1.5);
}

// {"a": [1, ("b",)]}, with the dictionary in itself as "self".
TEST(Pickle, CollectionsAlsoInCircles) {
  const std::string_view bytes =
      "\x80\x02}q\0(X\x01\0\0\0a](K\x01U\x01"
      "b\x85"
      "eX\x04\0\0\0selfh\0u."sv;
  const Pickle pickle = read_pickle(bytes, "a.pth");
  ASSERT_EQ(pickle.root->kind, ValueKind::dict);
  ASSERT_EQ(pickle.root->items.size(), 4U);
  EXPECT_EQ(pickle.root->items[0]->text, "a");
  EXPECT_EQ(pickle.root->items[1]->items[1]->items[0]->text, "b");
  EXPECT_EQ(pickle.root->items[3], pickle.root);
}

TEST(Pickle, CallsAreNamedAndNotMade) {
  const Pickle pickle = read_pickle("cos\nsystem\nU\x04true\x85R.", "a.pth");
  ASSERT_EQ(pickle.root->kind, ValueKind::call);
  EXPECT_TRUE(pickle.root->items[0]->is_global("os system"));
  EXPECT_EQ(pickle.root->items[1]->items[0]->text, "true");
}

TEST(Pickle, WhatIsCutOrUnknownIsRefused) {
  EXPECT_THAT(refusal("}"), HasSubstr("got its end at byte 1; it is damaged"));
  EXPECT_THAT(refusal("."), HasSubstr("an empty stack"));
  EXPECT_THAT(refusal("K\x01t."), HasSubstr("an empty stack"));
  EXPECT_THAT(refusal("h\x05."), HasSubstr("not in the memo, 5"));
  EXPECT_THAT(refusal("cos"), HasSubstr("a line without an end"));
  EXPECT_THAT(refusal("X\xff\xff\xff\xffz"), HasSubstr("its end"));
  EXPECT_THAT(refusal("i."), HasSubstr("instruction 105"));
}

// A small file could ask for any amount of memory.
TEST(Pickle, WhatCopiesOneValueAgainAndAgainIsRefused) {
  const std::string long_text = cat("X\x10\x27"s, "\0\0"s, std::string(10'000, 'a'), "q\0"s);
  EXPECT_THAT(refusal(cat(long_text, "h\0h\0\x93."s)), HasSubstr("a longer name"));
  std::string dicts = "ccollections\nOrderedDict\nq\0](q\1"s;
  for (int i = 0; i < 100; ++i)
    dicts += "K\1K\1\x86"s;
  dicts += "e\x85q\2"s;
  EXPECT_EQ(refusal(cat(dicts, "h\0h\2R."s)), "read");
  std::string many = dicts;
  for (int i = 0; i < 100; ++i)
    many += "h\0h\2R"s;
  EXPECT_THAT(refusal(cat(many, "."s)), HasSubstr("more pairs than it has bytes"));
}

}  // namespace
}  // namespace muster
