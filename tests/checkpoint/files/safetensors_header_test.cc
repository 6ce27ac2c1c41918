#include "muster/checkpoint/files/safetensors_header.h"

#include <gmock/gmock.h>

#include <random>

#include "muster/base/error.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTwo =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BOOL","shape":[],"data_offsets":[24,25]}})";

TEST(SafetensorsHeader, ParsesTensorsAndMetadata) {
  const auto header = parse_safetensors_header(kTwo + "   ", 25, "x");
  EXPECT_EQ(header.metadata.at("format"), "pt");
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_THAT(header.tensors.at("a").shape, ElementsAre(2, 3));
  EXPECT_EQ(to_string(header.tensors.at("a")), "F32[2, 3]");
  EXPECT_EQ(to_string(header.tensors.at("b")), "BOOL[]");
}

TEST(SafetensorsHeader, OrderInTheHeadIsFree) {
  const auto header = parse_safetensors_header(
      R"({"b":{"data_offsets":[2,4],"shape":[1],"dtype":"F16"},"a":{"shape":[2],"dtype":"U8","data_offsets":[0,2]},)"
      R"("none":{"dtype":"F64","shape":[0,5],"data_offsets":[2,2]}})",
      4,
      "x");
  EXPECT_EQ(header.tensors.size(), 3U);
  EXPECT_TRUE(parse_safetensors_header("{}", 0, "x").tensors.empty());
}

TEST(SafetensorsHeader, WhatIsFormattedIsParsed) {
  const auto header = parse_safetensors_header(kTwo, 25, "x");
  const auto text = format_safetensors_header(header);
  EXPECT_EQ(text.size() % 8, 0U);
  const auto again = parse_safetensors_header(text, 25, "x");
  EXPECT_EQ(again.metadata, header.metadata);
  EXPECT_EQ(again.tensors.at("a").end, 24U);
}

struct Bad {
  const char* name;
  std::string json;
  uint64_t data_bytes;
  const char* why;
};

std::string tensor(const std::string& name,
                   const std::string& dtype,
                   const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

std::vector<Bad> bad_headers() {
  const auto good = tensor("a", "U8", "[4]", "[0,4]");
  return {
      {"Empty", "", 0, "no '{'"},
      {"LeadingBlank", " {}", 0, "no '{'"},
      {"Array", "[]", 0, "no '{'"},
      {"Cut", "{" + good, 4, "no valid JSON"},
      {"Trailing", "{}x", 0, "no valid JSON"},
      {"BadUtf8", "{\"\xff\":{}}", 0, "no valid JSON"},
      {"DuplicateTensor", "{" + good + "," + good + "}", 4, "'a' twice"},
      {"DuplicateKey",
       R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4,
       "'dtype' twice"},
      {"DuplicateMetadata", R"({"__metadata__":{"x":"1","x":"2"}})", 0, "'x' twice"},
      {"TwoMetadata", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
      {"MetadataNumber", R"({"__metadata__":{"x":1}})", 0, "the number 1"},
      {"MetadataNested", R"({"__metadata__":{"x":{}}})", 0, "an object"},
      {"MetadataText", R"({"__metadata__":"x"})", 0, "a text"},
      {"UnknownKey",
       R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"z":1}})",
       4,
       "unknown key 'z'"},
      {"UnknownDtype", "{" + tensor("a", "F3", "[4]", "[0,4]") + "}", 4, "unknown dtype 'F3'"},
      {"HalfAByte",
       "{" + tensor("a", "F4", "[3]", "[0,1]") + "}",
       1,
       "F4[3] of no whole number of bytes"},
      {"MissingShape", R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", 4, "lacks"},
      {"OneOffset", "{" + tensor("a", "U8", "[4]", "[4]") + "}", 4, "lacks"},
      {"ThreeOffsets", "{" + tensor("a", "U8", "[4]", "[0,4,4]") + "}", 4, "the number 4"},
      {"NegativeExtent", "{" + tensor("a", "U8", "[-4]", "[0,4]") + "}", 4, "negative"},
      {"FractionExtent", "{" + tensor("a", "U8", "[4.0]", "[0,4]") + "}", 4, "fraction"},
      {"HugeExtent", "{" + tensor("a", "U8", "[99999999999999999999]", "[0,4]") + "}", 4, "huge"},
      {"UnsignedExtent",
       "{" + tensor("a", "U8", "[9223372036854775808]", "[0,4]") + "}",
       4,
       "number 9223"},
      {"NestedShape", "{" + tensor("a", "U8", "[[4]]", "[0,4]") + "}", 4, "an array"},
      {"ShapeText", "{" + tensor("a", "U8", "\"4\"", "[0,4]") + "}", 4, "a text"},
      {"TensorNull", R"({"a":null})", 0, "null"},
      {"Overflow",
       "{" + tensor("a", "F32", "[4611686018427387904,4]", "[0,0]") + "}",
       0,
       "overflows"},
      {"OverflowBehindZero",
       "{" + tensor("a", "F32", "[0,4611686018427387904,4]", "[0,0]") + "}",
       0,
       "overflows"},
      {"WrongExtent",
       "{" + tensor("a", "F32", "[4]", "[0,4]") + "}",
       4,
       "of 16 bytes with the offsets 0 to 4"},
      {"Backwards", "{" + tensor("a", "U8", "[4]", "[4,0]") + "}", 4, "offsets 4 to 0"},
      {"Hole",
       "{" + good + "," + tensor("b", "U8", "[1]", "[5,6]") + "}",
       6,
       "a hole before tensor 'b'"},
      {"HoleAtBeginning", "{" + tensor("a", "U8", "[4]", "[1,5]") + "}", 5, "a hole"},
      {"Overlap",
       "{" + good + "," + tensor("b", "U8", "[4]", "[3,7]") + "}",
       7,
       "an overlap before tensor 'b'"},
      {"Same", "{" + good + "," + tensor("b", "U8", "[4]", "[0,4]") + "}", 4, "an overlap"},
      {"DataTooLong", "{" + good + "}", 5, "5 bytes of data where the tensors take 4"},
      {"DataTooShort", "{" + good + "}", 3, "3 bytes of data"},
  };
}

TEST(SafetensorsHeader, RefusesWhatBreaksARule) {
  for (const auto& bad : bad_headers()) {
    SCOPED_TRACE(bad.name);
    const auto message =
        message_of([&] { parse_safetensors_header(bad.json, bad.data_bytes, "bad.file"); });
    EXPECT_THAT(message, HasSubstr("bad.file"));
    EXPECT_THAT(message, HasSubstr(bad.why));
  }
}

TEST(SafetensorsHeader, DeepNestingIsRefusedAtOnce) {
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1'000'000; ++i)
    deep += "{\"a\":";
  EXPECT_THROW(parse_safetensors_header(deep, 0, "x"), Error);
}

TEST(SafetensorsHeader, TooManyDimensions) {
  std::string shape = "[1";
  for (int i = 0; i < 100; ++i)
    shape += ",1";
  EXPECT_THROW(
      parse_safetensors_header("{" + tensor("a", "U8", shape + "]", "[0,1]") + "}", 1, "x"), Error);
}

// Whatever bytes come: a header that keeps the rules, or Error.
TEST(SafetensorsHeader, RandomDamageNeverDoesWorse) {
  std::mt19937 random(20);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = kTwo;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 4);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 8));
      }
    }
    try {
      const auto header = parse_safetensors_header(text, 25, "x");
      uint64_t total = 0;
      for (const auto& [name, entry] : header.tensors)
        total += entry.end - entry.begin;
      ASSERT_EQ(total, 25U) << text;
      ++accepted;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(SafetensorsHeader, RefusesToWriteWhatNobodyCouldRead) {
  SafetensorsHeader header;
  header.tensors["__metadata__"] = {};
  EXPECT_THROW(format_safetensors_header(header), Error);
  header.tensors.clear();
  header.tensors["\xff"] = {};
  EXPECT_THAT(message_of([&] { format_safetensors_header(header); }), HasSubstr("UTF-8"));
}

}  // namespace
}  // namespace muster
