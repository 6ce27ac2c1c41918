// How it works: the kernel is asked which source address it would take (a datagram socket that is
// connected and never written to), and which interfaces there are (getifaddrs).
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
#include <vector>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// The address that the kernel would send from to reach the given one; empty when there is no route.
// Connecting a datagram socket sends nothing.
std::string source_address(const addrinfo& to) {
  const Fd fd(::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  auto* const address = reinterpret_cast<sockaddr*>(&local);
  if (!fd.valid() || ::connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0)
    return "";
  if (::getsockname(fd.get(), address, &length) != 0)
    return "";
  return numeric_text(address, length);
}

struct Interface {
  std::string name;
  std::string address;
  bool is_ipv4 = false;
  bool leads_to_others = false;  // up, and no loopback
};

// One entry for each IP address of an interface.
std::vector<Interface> all_interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0)
    return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const int family = at->ifa_addr == nullptr ? AF_UNSPEC : at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6)
      continue;
    const bool is_ipv4 = family == AF_INET;
    const socklen_t size = is_ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const auto address = numeric_text(at->ifa_addr, size);
    const bool leads_to_others = (at->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == IFF_UP;
    if (!address.empty())
      found.push_back({at->ifa_name, address, is_ipv4, leads_to_others});
  }
  return found;
}

}  // namespace

std::string numeric_text(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  const int error = ::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text : "";
}

// A name may have several addresses, of which the first with a route counts.
std::string address_towards(const std::string& host) {
  if (host.empty() || host == "localhost")
    return "127.0.0.1";
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), "9", &hints, &found); error != 0) {
    throw unavailable("address: expected a host name that resolves, got '",
                      printable(host),
                      "' (",
                      gai_strerror(error),
                      "); check the spelling, or give a numeric address");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> results(found, ::freeaddrinfo);
  for (const addrinfo* at = results.get(); at != nullptr; at = at->ai_next) {
    std::string address = source_address(*at);
    if (!address.empty())
      return address;
  }
  throw unavailable("address: no route to '", printable(host), "' (", std::strerror(errno), ")");
}

std::string interface_with(const std::string& address) {
  for (const Interface& interface : all_interfaces()) {
    if (interface.address == address)
      return interface.name;
  }
  return "";
}

bool is_loopback_address(const std::string& address) {
  return address == "localhost" || address.starts_with("127.") || address == "::1";
}

// The scope, such as %eth0, is no part of the address itself.
bool is_ipv6_address(const std::string& text) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &address) == 1;
}

std::string with_brackets(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == npos || !is_ipv6_address(text.substr(0, colon)))
    return "";
  return cat("[", text.substr(0, colon), "]", text.substr(colon));
}

// "::1" is no such address, and "::" is none either.
bool lacks_brackets(const std::string& text) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, text.c_str(), &address) == 1 && IN6_IS_ADDR_V4COMPAT(&address) != 0;
}

// 192.0.2.1 is no machine's address (RFC 5737), so that it asks for the default route.
std::string outward_address() {
  try {
    std::string by_route = address_towards("192.0.2.1");
    if (!is_loopback_address(by_route))
      return by_route;
  } catch (const Error&) {
    // No default route: a closed network.
  }
  for (const Interface& interface : all_interfaces()) {
    if (interface.is_ipv4 && interface.leads_to_others)
      return interface.address;
  }
  return "";
}

}  // namespace muster
