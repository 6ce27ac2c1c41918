// Serves a store to the ranks of a job over TCP or a unix socket, in one thread of its own. The
// launcher makes one; a program without a launcher lets rank 0 do so. Clients are TcpStore. Who
// cannot prove to know the job's secret is read 64 bytes of and dropped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"
#include "muster/store/endpoint.h"
#include "muster/store/secret.h"

namespace muster {

struct TcpServerOptions {
  Endpoint endpoint{};   // where to listen, and nowhere else; default: loopback, a free port
  Secret secret{};       // of the job
  bool no_auth = false;  // serve without a secret: everybody who can connect may read and write
  std::string job{};     // clients of another job are refused even if the secret is the same
  milliseconds handshake_timeout{10'000};  // a stranger's time to prove itself
  size_t max_strangers = 64;               // at once; beyond it, or without room, the oldest goes
};

class TcpServer : NoCopy {
 public:
  // Counts since the start; for tests and reports.
  struct Stats {
    uint64_t authenticated = 0;   // let in
    uint64_t dropped = 0;         // strangers that did not prove themselves
    uint64_t stranger_bytes = 0;  // read from those
    uint64_t broken = 0;  // clients dropped for a frame that was not theirs or made no sense
  };

  // Listens and serves until destroyed.
  // Throws: failed_precondition without a secret unless `no_auth`; invalid_argument with both;
  // unavailable naming address and port when it cannot listen there.
  explicit TcpServer(TcpServerOptions options = {});
  ~TcpServer();

  // Where it listens, with the port it got.
  const Endpoint& endpoint() const;
  Stats stats() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace muster
