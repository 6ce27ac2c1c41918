#include "muster/store/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

std::string text_of(int error) {
  return std::generic_category().message(error);
}

struct LookUp {
  int result = 0;  // of getaddrinfo
  std::vector<SocketAddress> addresses;
};

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
  SocketAddress address;
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  un.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(un.sun_path)) {
    throw Error(ErrorCode::invalid_argument,
                cat("store endpoint: expected a path of 1 to ",
                    sizeof(un.sun_path) - 1,
                    " bytes, got '",
                    path,
                    "'"));
  }
  std::memcpy(un.sun_path, path.c_str(), path.size() + 1);
  address.size = sizeof(sockaddr_un);
  return address;
}

// An IPv4 peer of an IPv6 socket, as IPv4: both ends must name an address alike.
SocketAddress unmapped(const SocketAddress& address) {
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  if (in6.sin6_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr))
    return address;
  SocketAddress plain;
  auto& in = reinterpret_cast<sockaddr_in&>(plain.storage);
  in.sin_family = AF_INET;
  in.sin_port = in6.sin6_port;
  std::memcpy(&in.sin_addr, in6.sin6_addr.s6_addr + 12, 4);
  plain.size = sizeof(sockaddr_in);
  return plain;
}

uint16_t port_of(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
  if (address.storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
  return 0;
}

Fd make_socket(const SocketAddress& address) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid())
    fail_errno("store: cannot make a socket", errno);
  return fd;
}

// 0, or the errno of one attempt to connect that ends at `deadline`.
int try_connect(int fd, const SocketAddress& address, const Deadline& deadline) {
  if (::connect(fd, address.get(), address.size) == 0)
    return 0;
  if (errno != EINPROGRESS && errno != EINTR)
    return errno;
  for (;;) {
    pollfd waiting{fd, POLLOUT, 0};
    const int ready =
        ::poll(&waiting, 1, static_cast<int>(std::min<int64_t>(deadline.left().count(), 1 << 30)));
    if (ready < 0 && errno == EINTR)
      continue;
    if (ready < 0)
      return errno;
    if (ready == 0)
      return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof(error);
    return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
  }
}

// TCP lets a socket without a listener connect to itself, when the system picks for it the port it
// wants.
bool is_own_peer(int fd) {
  const SocketAddress local = local_address(fd);
  return local.storage.ss_family != AF_UNIX && to_string(local) == to_string(peer_address(fd));
}

// Errors of a server that may only not have started yet.
bool worth_another_try(int error) {
  return error == ECONNREFUSED || error == ENOENT || error == ECONNRESET || error == EAGAIN;
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

std::vector<SocketAddress> resolve(const Endpoint& endpoint, const Deadline& deadline) {
  if (endpoint.kind == Endpoint::Kind::unix_socket)
    return {unix_address(endpoint.path)};
  LookUp answer = look_up(endpoint.host, endpoint.port, AI_NUMERICHOST);
  if (answer.result == 0)
    return answer.addresses;
  // getaddrinfo cannot be given a deadline, and asks silent DNS servers for minutes: it gets a
  // thread that nobody has to wait for.
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
  throw Error(ErrorCode::unavailable,
              cat("store: expected a host name that resolves, got '",
                  endpoint.host,
                  "' (",
                  answered ? ::gai_strerror(answer.result) : "no answer in time",
                  "); correct the name"));
}

std::string host_of(const SocketAddress& mapped) {
  const SocketAddress address = unmapped(mapped);
  char text[INET6_ADDRSTRLEN] = "";
  if (address.storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address.storage);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
  } else if (address.storage.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    ::inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
  } else {
    return "unix";
  }
  return text;
}

std::string to_string(const SocketAddress& address) {
  std::string host = host_of(address);
  if (address.storage.ss_family == AF_UNIX)
    return host;
  const bool ipv6 = host.find(':') != std::string::npos;
  return cat(ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port_of(address));
}

bool is_loopback(const SocketAddress& mapped) {
  const SocketAddress address = unmapped(mapped);
  if (address.storage.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr) >> 24 ==
           127;
  if (address.storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(
               &reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr) != 0;
  return address.storage.ss_family == AF_UNIX;
}

SocketAddress local_address(int fd) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0)
    fail_errno("store: cannot tell a socket's address", errno);
  return address;
}

SocketAddress peer_address(int fd) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0)
    fail_errno("store: cannot tell a peer's address", errno);
  return address;
}

Fd listen_on(Endpoint& endpoint, const Deadline& deadline) {
  const SocketAddress address = resolve(endpoint, deadline).front();
  const bool tcp = endpoint.kind == Endpoint::Kind::tcp;
  Fd fd = make_socket(address);
  const int on = 1;
  // A port whose last connections are still fading out may be taken; one with a listener may not.
  if (tcp)
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!tcp)
    remove_leftover(address, endpoint.path);
  const bool bound = ::bind(fd.get(), address.get(), address.size) == 0 &&
                     (tcp || ::chmod(endpoint.path.c_str(), 0600) == 0) &&
                     ::listen(fd.get(), SOMAXCONN) == 0;
  if (!bound) {
    const int error = errno;
    throw Error(
        ErrorCode::unavailable,
        cat("store server: expected to listen on ",
            to_string(endpoint),
            ", got: ",
            text_of(error),
            tcp ? "; choose another port, or 0 for any free one" : "; choose another path"));
  }
  if (tcp)
    endpoint.port = port_of(local_address(fd.get()));
  return fd;
}

Fd connect_to(const Endpoint& endpoint, IfRefused if_refused, const Deadline& deadline) {
  const auto start = Clock::now();
  const auto addresses = resolve(endpoint, deadline);
  auto pause = std::chrono::milliseconds(1);
  for (;;) {
    int error = 0;
    bool again = false;
    for (size_t i = 0; i < addresses.size(); ++i) {
      Fd fd = make_socket(addresses[i]);
      // One silent address must not use up the time of the others.
      const auto share = deadline.left() / static_cast<int>(addresses.size() - i);
      error = try_connect(fd.get(), addresses[i], Deadline(share));
      if (error == 0 && is_own_peer(fd.get()))
        error = ECONNREFUSED;
      if (error == 0) {
        ::fcntl(fd.get(), F_SETFL, 0);  // blocking from here on
        return fd;
      }
      again = again || (if_refused == IfRefused::retry && worth_another_try(error));
    }
    if (!again || deadline.left() <= pause) {
      const std::string message = cat("store: expected a server at ",
                                      to_string(endpoint),
                                      ", got: ",
                                      text_of(error),
                                      " (tried for ",
                                      seconds_since(start),
                                      " s); see whether the launcher still runs");
      if (if_refused == IfRefused::fail && error == ECONNREFUSED)
        throw StoreGone(ErrorCode::unavailable, message);
      throw Error(ErrorCode::unavailable, message);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(100));
  }
}

void tune(int fd) {
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(
        fd, level, option, &value, sizeof(value));  // unix sockets refuse these, and need none
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

}  // namespace muster
