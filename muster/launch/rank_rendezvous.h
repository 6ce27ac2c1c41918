// A job's ranks find each other by two things: a held port for PyTorch's own store (MASTER_PORT),
// and a served store for muster's (MUSTER_STORE) with its secret. Made by the launcher of one host,
// and by every host's agent of several, of which the one with rank 0 is used.
#pragma once

#include <memory>
#include <string>

#include "muster/base/fd.h"
#include "muster/launch/port.h"
#include "muster/store/secret.h"
#include "muster/store/store.h"
#include "muster/store/tcp_server.h"

namespace muster {

struct RankRendezvousOptions {
  std::string address = "127.0.0.1";  // that the store listens on
  int master_port = 0;                // 0: a free one
  Secret secret{};                    // empty: a fresh one, unless `no_auth`
  bool no_auth = false;
};

class RankRendezvous {
 public:
  // Throws: unavailable (port taken, no such address here).
  explicit RankRendezvous(const RankRendezvousOptions& options = {});

  int master_port() const { return port_.port(); }
  std::string store() const { return to_string(store_->endpoint()); }  // MUSTER_STORE
  int secret_fd() const { return secret_fd_.get(); }                   // -1: no secret

  // The launcher's own way into the store that it serves. Throws: unavailable.
  SharedStore open() const;

 private:
  PortReservation port_;
  Secret secret_;
  Fd secret_fd_;
  std::unique_ptr<TcpServer> store_;
};

}  // namespace muster
