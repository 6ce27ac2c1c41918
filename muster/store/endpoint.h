// Where a store is served, as written in MUSTER_STORE: "tcp://host:port" or "unix:path".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

struct Endpoint {
  enum class Kind { tcp, unix_socket };

  Kind kind = Kind::tcp;
  std::string host = "127.0.0.1";  // tcp: a name or an address, IPv6 without brackets
  uint16_t port = 0;               // tcp: 0 lets a server pick a free one
  std::string path{};              // unix_socket
};

// "tcp://host:port", "tcp://[::1]:port" or "unix:/path". Throws: invalid_argument.
Endpoint parse_endpoint(std::string_view text);

// The text that parse_endpoint reads.
std::string to_string(const Endpoint& endpoint);

// "host:port"; an IPv6 address gets brackets, so that its last group is not taken for the port.
std::string host_and_port(const std::string& host, uint16_t port);

}  // namespace muster
