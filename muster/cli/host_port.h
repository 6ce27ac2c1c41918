// A host and a port in one text, as flags give them.
#pragma once

#include <optional>
#include <string>

namespace muster {

struct HostPort {
  std::string host;
  std::optional<int> port{};
};

// "host:port", "[::1]:port", "tcp://host:port"; the port may be left out. Throws: invalid_argument
// naming the flag.
HostPort parse_host_port(const std::string& text, const std::string& flag);

// An IPv6 address gets brackets, so that a port can follow it.
std::string in_brackets(const std::string& host);

}  // namespace muster
