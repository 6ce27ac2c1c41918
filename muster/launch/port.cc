// A reservation is a bound socket that does not listen. It is bound without SO_REUSEADDR, so that
// no second reservation gets the same port, and has it set afterwards: rank 0, which sets it too,
// can then bind and listen while the launcher holds the port.
#include "muster/launch/port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/tcp_table.h"

namespace muster {

namespace {

void set_option(const Fd& socket, int level, int name, int value) {
  ::setsockopt(socket.get(), level, name, &value, sizeof(value));
}

// Whether the socket is bound now; errno says why not.
template <class Address>
bool is_bound_to(const Fd& socket, const Address& address) {
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// A socket bound to `port` on every address, IPv6 and IPv4. Returns an invalid descriptor, with
// errno set, when the port is taken.
Fd bind_everywhere(int port, bool reuse) {
  Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.valid()) {
    set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (reuse)
      set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    if (is_bound_to(fd, address))
      return fd;
    if (!is_one_of(errno, EADDRNOTAVAIL, EAFNOSUPPORT))
      return {};
  }
  fd = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // a host without IPv6
  if (!fd.valid())
    return {};
  if (reuse)
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (!is_bound_to(fd, address))
    return {};
  return fd;
}

int bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    fail_errno("getsockname", errno);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Whether only the remains of closed connections keep the port: they do not stop a program that
// sets SO_REUSEADDR.
bool only_old_connections(int port) {
  bool any = false;
  for (const TcpEntry& entry : tcp_table().value_or(TcpEntries())) {
    if (entry.port == port && entry.listens)
      return false;
    any |= entry.port == port;
  }
  return any;
}

// The launcher of another job holds a port without listening, so the system does not tell of it.
std::string job_that_holds(int port) {
  try {
    for (const JobNote& job : running_jobs()) {
      if (job.master_port == port)
        return named_job(job);
    }
  } catch (const Error&) {
    return {};  // a folder that cannot be read
  }
  return {};
}

Error port_taken(int port) {
  const auto holder = text_or(port_holder(port), "another program");
  return unavailable("--master-port: expected a free port, got ",
                     port,
                     ", which is in use by ",
                     holder,
                     "; end it, give another port, or give none to have a free one chosen");
}

}  // namespace

PortReservation::PortReservation(int port) {
  if (port < 0 || port > 65535) {
    throw invalid_argument("--master-port: expected a port from 1 to 65535, got ", port);
  }
  // The first try is without SO_REUSEADDR: with it, the bind would share the port with another
  // job's reservation.
  socket_ = bind_everywhere(port, false);
  if (!socket_.valid()) {
    if (errno == EACCES) {
      throw unavailable("--master-port: expected a port that this user may use, got ",
                        port,
                        "; give one above 1023");
    }
    if (errno != EADDRINUSE)
      fail_errno("cannot reserve a port", errno);
    if (only_old_connections(port))
      socket_ = bind_everywhere(port, true);
    if (!socket_.valid())
      throw port_taken(port);
  }
  set_option(socket_, SOL_SOCKET, SO_REUSEADDR, 1);
  port_ = bound_port(socket_.get());
}

std::string port_holder(int port) {
  for (const TcpEntry& entry : tcp_table().value_or(TcpEntries())) {
    if (entry.port == port && entry.listens)
      return process_with_socket(entry.inode);
  }
  return job_that_holds(port);
}

// An address belongs to this host if a socket can be bound to it.
void check_master_address(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int rc = ::getaddrinfo(address.c_str(), nullptr, &hints, &list);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  if (rc != 0) {
    throw invalid_argument("--master-addr: expected a name or address of this host, got '",
                           printable(address),
                           "', which does not resolve (",
                           ::gai_strerror(rc),
                           "); correct it, or leave it out");
  }
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const Fd probe(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (probe.valid() && ::bind(probe.get(), entry->ai_addr, entry->ai_addrlen) == 0)
      return;
  }
  throw invalid_argument(
      "--master-addr: expected an address of this host, where rank 0 will listen, got '",
      printable(address),
      "', which belongs to another host; leave it out, since this job runs on this host alone");
}

}  // namespace muster
