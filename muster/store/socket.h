// Stream sockets for the store: name resolution that ends in time, listening, connecting. Called by
// tcp_server.cc and tcp_store.cc; knows nothing of what is said over them.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/store/endpoint.h"

namespace muster {

// Another process has the address.
struct AddressInUse : Error {
  using Error::Error;
};

// No server can be reached, or none answers. The message ends with advice for a rank, whose
// launcher serves; whoever knows better who serves takes the fact alone.
class ServerUnreachable : public Error {
 public:
  ServerUnreachable(ErrorCode code, const std::string& fact, const std::string& advice)
      : Error(code, fact + "; " + advice), fact_(fact) {}
  const std::string& fact() const { return fact_; }

 private:
  std::string fact_;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  sa_family_t family() const { return storage.ss_family; }
};

// The addresses of an endpoint, in the system's order of preference.
// Blocking: until resolved or `deadline`. Throws: ServerUnreachable (unavailable) naming the host.
std::vector<SocketAddress> resolve(const Endpoint& endpoint, const Deadline& deadline);

// "127.0.0.1:29500", "[::1]:29500" (an IPv4 address in IPv6 clothing as IPv4), or "unix". Never
// asks DNS.
std::string to_string(const SocketAddress& address);
// The host without the port.
std::string host_of(const SocketAddress& address);

// True for 127.0.0.0/8, ::1 and unix sockets.
bool is_loopback(const SocketAddress& address);

// The address of this (of the other) end of a socket.
SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);

// A listening, non-blocking socket on the endpoint's first address. Port 0 is replaced by the one
// taken; a unix socket's leftover file, to which nobody listens, is replaced, and the new one is
// private (0600). Throws: unavailable naming address and port.
Fd listen_on(Endpoint& endpoint, const Deadline& deadline);

// When nobody listens: an error at once, or try again until the deadline (the server may be
// starting).
enum class IfRefused { fail, retry };

// A connected, blocking socket. Blocking: until connected or `deadline`. Throws: ServerUnreachable
// (unavailable) naming the endpoint; StoreGone when nobody listens there (with IfRefused::fail).
Fd connect_to(const Endpoint& endpoint, IfRefused if_refused, const Deadline& deadline);

// Small requests are sent at once, and a peer whose host vanished is noticed within half a minute.
void tune(int fd);

}  // namespace muster
