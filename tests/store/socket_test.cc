#include "muster/store/socket.h"

#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;
using testing::HasSubstr;

TEST(Socket, TellsLoopbackFromTheRest) {
  const Deadline soon(kLong);
  for (const std::string host : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(is_loopback(resolve({.host = host}, soon).front())) << host;
  for (const std::string host : {"0.0.0.0", "10.0.0.1", "::", "::ffff:10.0.0.1"})
    EXPECT_FALSE(is_loopback(resolve({.host = host}, soon).front())) << host;
}

TEST(Socket, NamesAddressesAlikeAtBothEnds) {
  const Deadline soon(kLong);
  EXPECT_EQ(to_string(resolve({.host = "::ffff:127.0.0.1", .port = 80}, soon).front()),
            "127.0.0.1:80");
  EXPECT_EQ(to_string(resolve({.host = "::1", .port = 80}, soon).front()), "[::1]:80");
}

TEST(Socket, AHostThatDoesNotResolveIsNamed) {
  EXPECT_THAT(error_of(ErrorCode::unavailable,
                       [] {
                         resolve({.host = "no-such-host.invalid", .port = 1},
                                 Deadline(std::chrono::seconds(5)));
                       }),
              HasSubstr("'no-such-host.invalid'"));
}

TEST(Socket, WhereNobodyListensIsNamedAtOnceOrAtTheDeadline) {
  Endpoint endpoint;
  listen_on(endpoint, Deadline(kLong)).reset();  // its port is free again
  for (const IfRefused if_refused : {IfRefused::fail, IfRefused::retry}) {
    EXPECT_THAT(
        error_of(
            ErrorCode::unavailable,
            [&] { connect_to(endpoint, if_refused, Deadline(std::chrono::milliseconds(50))); }),
        HasSubstr(to_string(endpoint)));
  }
  const Endpoint nowhere{.kind = Endpoint::Kind::unix_socket, .path = "/nonexistent/socket"};
  EXPECT_THAT(error_of(ErrorCode::unavailable,
                       [&] { connect_to(nowhere, IfRefused::fail, Deadline(kLong)); }),
              HasSubstr("/nonexistent/socket"));
}

}  // namespace
}  // namespace muster
