#include "muster/store/wire.h"

#include <random>

#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;
using Operation = StoreRequest::Operation;

std::string encoded(const auto& message) {
  std::string bytes;
  encode(message, bytes);
  return bytes;
}

TEST(Wire, RequestsAndRepliesSurvive) {
  const StoreRequest request{.operation = Operation::compare_set,
                             .keys = {std::string("k\0y", 3)},
                             .value = "desired",
                             .expected = "expected",
                             .number = INT64_MIN};
  const StoreRequest back = decode_request(encoded(request));
  EXPECT_EQ(back.operation, request.operation);
  EXPECT_EQ(back.keys, request.keys);
  EXPECT_EQ(back.value, request.value);
  EXPECT_EQ(back.expected, request.expected);
  EXPECT_EQ(back.number, request.number);
  const StoreReply reply{.ok = false, .code = ErrorCode::timeout, .text = "t", .number = -1};
  const StoreReply reply_back = decode_reply(encoded(reply));
  EXPECT_FALSE(reply_back.ok);
  EXPECT_EQ(reply_back.code, ErrorCode::timeout);
  EXPECT_EQ(reply_back.text, "t");
  EXPECT_EQ(reply_back.number, -1);
  EXPECT_TRUE(decode_reply(encoded(StoreReply{})).ok);
}

TEST(Wire, EveryCutAndEveryAdditionIsRefused) {
  const std::string request =
      encoded(StoreRequest{.operation = Operation::wait, .keys = {"a", "bc"}});
  const std::string reply = encoded(StoreReply{.text = "value"});
  for (size_t size = 0; size < request.size(); ++size)
    error_of(ErrorCode::io, [&] { decode_request(std::string_view(request).substr(0, size)); });
  for (size_t size = 0; size < reply.size(); ++size)
    error_of(ErrorCode::io, [&] { decode_reply(std::string_view(reply).substr(0, size)); });
  error_of(ErrorCode::io, [&] { decode_request(request + "x"); });
  error_of(ErrorCode::io, [&] { decode_reply(reply + "x"); });
}

TEST(Wire, SenselessRequestsAreRefused) {
  for (const StoreRequest& request :
       {StoreRequest{.operation = Operation{0}},
        StoreRequest{.operation = Operation{99}},
        StoreRequest{.operation = Operation::set},
        StoreRequest{.operation = Operation::get, .keys = {"a", "b"}},
        StoreRequest{.operation = Operation::num_keys, .keys = {"a"}},
        StoreRequest{.operation = Operation::get, .keys = {std::string(kMaxKeyBytes + 1, 'k')}}}) {
    error_of(ErrorCode::io, [&] { decode_request(encoded(request)); });
  }
  std::string huge_count = encoded(StoreRequest{.operation = Operation::wait});
  huge_count.replace(1, 4, "\xff\xff\xff\xff");
  error_of(ErrorCode::io, [&] { decode_request(huge_count); });
}

TEST(Wire, ValuesSurviveAndNothingElseIsTakenForThem) {
  const std::vector<std::optional<std::string>> values = {"a", std::nullopt, "", "bc"};
  const std::string bytes = encode_values(values);
  EXPECT_EQ(decode_values(bytes, 4), values);
  for (size_t size = 0; size < bytes.size(); ++size)
    error_of(ErrorCode::io, [&] { decode_values(std::string_view(bytes).substr(0, size), 4); });
  error_of(ErrorCode::io, [&] { decode_values(bytes, 3); });
  error_of(ErrorCode::io, [&] { decode_values(bytes, 5); });
  error_of(ErrorCode::io, [&] { decode_values("\2", 1); });
}

TEST(Wire, RandomBytesAreRefusedOrDecodedNeverWorse) {
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 64, '\0');
    for (char& c : bytes)
      c = static_cast<char>(random() % 8);
    for (const auto& decode : {+[](std::string_view b) { (void)decode_request(b); },
                               +[](std::string_view b) { (void)decode_reply(b); }}) {
      try {
        decode(bytes);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
      }
    }
  }
}

}  // namespace
}  // namespace muster
