// How it works: everything that waits has a deadline. Names are looked up in a thread that nobody
// waits for longer than that, and connections are made without blocking and polled. An address is
// kept as the system's sockaddr_storage and copied out as what it is.
#include "muster/store/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/poll_one.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/store/store.h"

namespace muster {

namespace {

// Any thread may call this, unlike strerror.
std::string text_of(int error) {
  return std::generic_category().message(error);
}

// The address as the kind of struct that its family has.
template <class Sockaddr>
Sockaddr address_as(const SocketAddress& address) {
  Sockaddr specific;
  std::memcpy(&specific, &address.storage, sizeof(specific));
  return specific;
}

template <class Sockaddr>
SocketAddress address_from(const Sockaddr& specific) {
  SocketAddress address;
  std::memcpy(&address.storage, &specific, sizeof(specific));
  address.size = sizeof(specific);
  return address;
}

struct LookUp {
  int result = 0;  // what getaddrinfo returns
  std::vector<SocketAddress> addresses;
};

// Blocking: as long as DNS servers take.
LookUp look_up(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  LookUp answer;
  answer.result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (answer.result != 0)
    return answer;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
    address.size = item->ai_addrlen;
    answer.addresses.push_back(address);
  }
  ::freeaddrinfo(list);
  return answer;
}

SocketAddress unix_address(const std::string& path) {
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(un.sun_path))
    throw invalid_argument("store endpoint: expected a path of 1 to ",
                           sizeof(un.sun_path) - 1,
                           " bytes, got '",
                           printable(path),
                           "'");
  std::memcpy(un.sun_path, path.c_str(), path.size() + 1);
  return address_from(un);
}

// An IPv4 peer of an IPv6 socket becomes an IPv4 address: both ends must name an address alike.
SocketAddress unmapped(const SocketAddress& address) {
  if (address.family() != AF_INET6)
    return address;
  const auto in6 = address_as<sockaddr_in6>(address);
  if (!IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr))
    return address;
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = in6.sin6_port;
  std::memcpy(&in.sin_addr, in6.sin6_addr.s6_addr + 12, 4);
  return address_from(in);
}

SocketAddress address_by(const auto& ask, int fd, const char* failing) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (ask(fd, address.get(), &address.size) != 0)
    fail_errno(failing, errno);
  return address;
}

// 0 for a unix socket.
uint16_t port_of(const SocketAddress& address) {
  if (address.family() == AF_INET)
    return ntohs(address_as<sockaddr_in>(address).sin_port);
  if (address.family() == AF_INET6)
    return ntohs(address_as<sockaddr_in6>(address).sin6_port);
  return 0;
}

// It does not block, so that a connection can be given a deadline.
Fd make_socket(const SocketAddress& address) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid())
    fail_errno("store: cannot make a socket", errno);
  return fd;
}

// poll(2) until there is room, going on after signals: its result, or -1 with errno.
int poll_for_room(int fd, const Deadline& deadline) {
  for (;;) {
    const int ready = poll_one(fd, POLLOUT, deadline.left_for_poll());
    if (ready >= 0 || errno != EINTR)
      return ready;
  }
}

// 0, or the errno of one try to connect that ends at `deadline`.
int try_connect(int fd, const SocketAddress& address, const Deadline& deadline) {
  if (::connect(fd, address.get(), address.size) == 0)
    return 0;
  if (errno != EINPROGRESS && errno != EINTR)
    return errno;
  const int ready = poll_for_room(fd, deadline);
  if (ready == 0)
    return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  if (ready < 0 || ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
    return errno;
  return error;
}

// TCP lets a socket without a listener connect to itself, when the system picks for it the port it
// wants.
bool is_own_peer(int fd) {
  const SocketAddress local = local_address(fd);
  return local.family() != AF_UNIX && to_string(local) == to_string(peer_address(fd));
}

// These errors come also of a server that only has not started yet.
bool worth_another_try(int error) {
  return is_one_of(error, ECONNREFUSED, ENOENT, ECONNRESET, EAGAIN);
}

struct Connected {
  Fd fd;          // invalid when none of the addresses was reached
  int error = 0;  // of the last address
  bool is_worth_another_try = false;
};

// Tries each address once, with an equal share of the time that is left, so that one that is silent
// does not use up that of the others.
Connected connect_to_one_of(const std::vector<SocketAddress>& addresses, const Deadline& deadline) {
  Connected result;
  auto to_try = std::ssize(addresses);
  for (const SocketAddress& address : addresses) {
    Fd fd = make_socket(address);
    result.error = try_connect(fd.get(), address, Deadline(deadline.left() / to_try--));
    if (result.error == 0 && is_own_peer(fd.get()))
      result.error = ECONNREFUSED;
    if (result.error == 0) {
      result.fd = std::move(fd);
      return result;
    }
    result.is_worth_another_try |= worth_another_try(result.error);
  }
  return result;
}

// A socket file to which nobody listens is left over from a process that was killed.
void remove_leftover(const SocketAddress& address, const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode))
    return;
  const Fd probe = make_socket(address);
  if (::connect(probe.get(), address.get(), address.size) != 0 && errno == ECONNREFUSED)
    ::unlink(path.c_str());
}

}  // namespace

// getaddrinfo cannot be given a deadline, and asks silent DNS servers for minutes: it gets a thread
// that nobody has to wait for. A numeric address needs none.
std::vector<SocketAddress> resolve(const Endpoint& endpoint, const Deadline& deadline) {
  if (endpoint.kind == Endpoint::Kind::unix_socket)
    return {unix_address(endpoint.path)};
  LookUp answer = look_up(endpoint.host, endpoint.port, AI_NUMERICHOST);
  if (answer.result == 0)
    return answer.addresses;
  std::promise<LookUp> promise;
  auto future = promise.get_future();
  std::thread([host = endpoint.host, port = endpoint.port, promise = std::move(promise)]() mutable {
    promise.set_value(look_up(host, port, 0));
  }).detach();
  const bool answered = future.wait_for(deadline.left()) == std::future_status::ready;
  if (answered)
    answer = future.get();
  if (answered && answer.result == 0)
    return answer.addresses;
  throw ServerUnreachable(ErrorCode::unavailable,
                          cat("store: expected a host name that resolves, got '",
                              printable(endpoint.host),
                              "' (",
                              answered ? ::gai_strerror(answer.result) : "no answer in time",
                              ")"),
                          "correct the name");
}

// The text has digits only, so that DNS is never asked.
std::string host_of(const SocketAddress& mapped) {
  const SocketAddress address = unmapped(mapped);
  const auto in = address_as<sockaddr_in>(address);
  const auto in6 = address_as<sockaddr_in6>(address);
  char text[INET6_ADDRSTRLEN] = "";
  switch (address.family()) {
    case AF_INET:
      ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
      return text;
    case AF_INET6:
      ::inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
      return text;
    default:
      return "unix";
  }
}

std::string to_string(const SocketAddress& address) {
  const std::string host = host_of(address);
  return address.family() == AF_UNIX ? host : host_and_port(host, port_of(address));
}

bool is_loopback(const SocketAddress& mapped) {
  const SocketAddress address = unmapped(mapped);
  const auto in = address_as<sockaddr_in>(address);
  const auto in6 = address_as<sockaddr_in6>(address);
  switch (address.family()) {
    case AF_INET:
      return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    case AF_INET6:
      return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) != 0;
    default:
      return address.family() == AF_UNIX;
  }
}

SocketAddress local_address(int fd) {
  return address_by(::getsockname, fd, "store: cannot tell a socket's address");
}

// A peer that has gone already has no address.
SocketAddress peer_address(int fd) {
  return address_by(::getpeername, fd, "store: cannot tell a peer's address");
}

// A port whose last connections are still fading out may be taken; one with a listener may not.
Fd listen_on(Endpoint& endpoint, const Deadline& deadline) {
  const SocketAddress address = resolve(endpoint, deadline).front();
  const bool is_tcp = endpoint.kind == Endpoint::Kind::tcp;
  Fd fd = make_socket(address);
  const int on = 1;
  if (is_tcp)
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  else
    remove_leftover(address, endpoint.path);
  const bool listens = ::bind(fd.get(), address.get(), address.size) == 0 &&
                       (is_tcp || ::chmod(endpoint.path.c_str(), 0600) == 0) &&
                       ::listen(fd.get(), SOMAXCONN) == 0;
  if (!listens) {
    const int error = errno;
    const char* const advice = is_tcp ? "; choose another port" : "; choose another path";
    const auto message = cat("store server: expected to listen on ",
                             to_string(endpoint),
                             ", got: ",
                             text_of(error),
                             advice);
    if (error == EADDRINUSE)
      throw AddressInUse(ErrorCode::unavailable, message);
    throw unavailable(message);
  }
  if (is_tcp)
    endpoint.port = port_of(local_address(fd.get()));
  return fd;
}

Fd connect_to(const Endpoint& endpoint, IfRefused if_refused, const Deadline& deadline) {
  const auto start = Clock::now();
  const auto addresses = resolve(endpoint, deadline);
  auto pause = milliseconds(1);
  for (;;) {
    Connected connected = connect_to_one_of(addresses, deadline);
    if (connected.fd.valid()) {
      ::fcntl(connected.fd.get(), F_SETFL, 0);  // blocking from here on
      return std::move(connected.fd);
    }
    const bool again = if_refused == IfRefused::retry && connected.is_worth_another_try;
    if (!again || deadline.left() <= pause) {
      const auto fact = cat("store: expected a server at ",
                            to_string(endpoint),
                            ", got: ",
                            text_of(connected.error),
                            " (tried for ",
                            format_seconds(seconds_since(start)),
                            ")");
      const std::string advice = "see whether the launcher still runs";
      if (if_refused == IfRefused::fail && connected.error == ECONNREFUSED)
        throw StoreGone(ErrorCode::unavailable, cat(fact, "; ", advice));
      throw ServerUnreachable(ErrorCode::unavailable, fact, advice);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, milliseconds(100));
  }
}

// Unix sockets refuse these options, and need none.
void tune(int fd) {
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

}  // namespace muster
