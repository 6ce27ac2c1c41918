// Who listens on a TCP port of this host, asked of the kernel: by netlink, which takes some ten
// microseconds whatever else is connected, or where that is forbidden from the table in /proc.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "muster/base/fd.h"

namespace muster {

struct TcpListener {
  // The user who made the socket; in a user namespace, the overflow uid for users outside.
  uint32_t uid = 0;
  uint64_t inode = 0;
  bool has_whole_port = false;  // on every address, IPv6 and IPv4: nobody else can listen there
};

using TcpListenerList = std::vector<TcpListener>;

class TcpListeners {
 public:
  // Nothing where the kernel does not tell. Source: sock_diag(7), proc_net(5).
  std::optional<TcpListenerList> on(int port);

 private:
  bool ask(int port, int family, TcpListenerList& found);

  Fd netlink_;
  bool is_refused_ = false;  // netlink, here
  uint32_t question_ = 0;
};

}  // namespace muster
