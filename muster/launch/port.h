// MASTER_ADDR and MASTER_PORT: where rank 0 of a PyTorch job listens. The launcher only holds the
// port: it is bound with SO_REUSEADDR and never listened on, so that rank 0 (which sets
// SO_REUSEADDR too, as PyTorch does) can listen there while an ordinary bind by others is refused.
#pragma once

#include <string>

#include "muster/base/fd.h"

namespace muster {

class PortReservation {
 public:
  PortReservation() = default;

  // Holds `port` on every address of this host; 0 picks a free one. Throws: unavailable naming the
  // port and, where it can be found, the process that has it; invalid_argument for a number that is
  // no port.
  explicit PortReservation(int port);

  int port() const { return port_; }

 private:
  Fd socket_;
  int port_ = 0;
};

// "process 4711 (python3)": who listens on TCP `port` of this host, or which job of this user's
// holds it for its rank 0; empty when nobody does or we may not know.
std::string port_holder(int port);

// Checks that rank 0 can be reached here as `address`. Blocking: for name resolution.
// Throws: invalid_argument when it does not resolve or is another host's.
void check_master_address(const std::string& address);

}  // namespace muster
