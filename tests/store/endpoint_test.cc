#include "muster/store/endpoint.h"

#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;

TEST(Endpoint, ReadsWhatItWrites) {
  for (const std::string text : {"tcp://127.0.0.1:29500",
                                 "tcp://host-3.cluster:1",
                                 "tcp://[::1]:65535",
                                 "tcp://[fe80::1]:0",
                                 "unix:/run/user/0/muster/s",
                                 "unix:relative"}) {
    EXPECT_EQ(to_string(parse_endpoint(text)), text);
  }
  const Endpoint ipv6 = parse_endpoint("tcp://[::1]:80");
  EXPECT_EQ(ipv6.host, "::1");
  EXPECT_EQ(ipv6.port, 80);
}

TEST(Endpoint, RefusesAnythingElse) {
  for (const std::string text : {"",
                                 "tcp://",
                                 "tcp://host",
                                 "tcp://host:",
                                 "tcp://:80",
                                 "tcp://host:65536",
                                 "tcp://host:-1",
                                 "tcp://host:8x",
                                 "tcp://::1:80",
                                 "tcp://[::1]",
                                 "tcp://[]:80",
                                 "tcp://a b:80",
                                 "tcp://host/path:80",
                                 "http://host:80",
                                 "host:80",
                                 "unix:",
                                 "TCP://host:80"}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { parse_endpoint(text); }),
                testing::HasSubstr("'" + text + "'"));
  }
  error_of(ErrorCode::invalid_argument, [] { parse_endpoint("unix:/" + std::string(200, 'p')); });
}

}  // namespace
}  // namespace muster
