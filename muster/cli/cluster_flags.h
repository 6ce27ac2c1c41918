// torchrun's flags of a rendezvous, and what several kinds of flags have in common when they are wrong.
#pragma once

#include <string>

#include "muster/base/error.h"

namespace muster {

// "<flag>: expected <expected>, got '<got>'; <next>".
Error bad_flag(const std::string& flag, const std::string& expected, const std::string& got,
               const std::string& next = "");

struct HostPort {
  std::string host;
  int port = 0;  // 0: not given
};

// "host:port", "[::1]:port"; the port may be left out. Throws: invalid_argument naming the flag.
HostPort parse_host_port(const std::string& text, const std::string& flag);

}  // namespace muster
