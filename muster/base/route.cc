#include "muster/base/route.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

std::string address_towards(const std::string& host) {
  if (host.empty() || host == "localhost")
    return "127.0.0.1";
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), "9", &hints, &found); error != 0) {
    throw Error(ErrorCode::unavailable,
                cat("address: expected a host name that resolves, got '",
                    host,
                    "' (",
                    gai_strerror(error),
                    "); check the spelling, or give a numeric address"));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> results(found, ::freeaddrinfo);
  for (const addrinfo* at = results.get(); at != nullptr; at = at->ai_next) {
    // Connecting a datagram socket sends nothing; the kernel picks the source address.
    const Fd fd(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    auto* address = reinterpret_cast<sockaddr*>(&local);
    char text[NI_MAXHOST];
    if (fd.valid() && ::connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), address, &length) == 0 &&
        ::getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) {
      return text;
    }
  }
  throw Error(ErrorCode::unavailable,
              cat("address: no route to '", host, "' (", std::strerror(errno), ")"));
}

std::string interface_with(const std::string& address) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0)
    return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr)
      continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6)
      continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    char text[NI_MAXHOST];
    if (::getnameinfo(at->ifa_addr, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 &&
        text == address)
      return at->ifa_name;
  }
  return "";
}

bool is_loopback_address(const std::string& address) {
  return address == "localhost" || address.starts_with("127.") || address == "::1";
}

bool is_ipv6_address(const std::string& text) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &address) == 1;
}

std::string outward_address() {
  try {
    std::string by_route =
        address_towards("192.0.2.1");  // of no machine: asks for the default route
    if (!is_loopback_address(by_route))
      return by_route;
  } catch (const Error&) {
    // No default route: a closed network.
  }
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0)
    return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET)
      continue;
    if ((at->ifa_flags & IFF_LOOPBACK) != 0 || (at->ifa_flags & IFF_UP) == 0)
      continue;
    char text[NI_MAXHOST];
    if (::getnameinfo(
            at->ifa_addr, sizeof(sockaddr_in), text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      return text;
  }
  return "";
}

}  // namespace muster
