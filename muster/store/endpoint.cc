// How it works: the text is cut at its scheme, at its last colon and at the brackets of an IPv6
// address. Names are not looked up here.
#include "muster/store/endpoint.h"

#include <sys/un.h>

#include <optional>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kUnix = "unix:";

// The path must fit into a socket's address.
Endpoint parse_unix(std::string_view text) {
  Endpoint endpoint{.kind = Endpoint::Kind::unix_socket, .host = {}};
  endpoint.path = text.substr(kUnix.size());
  const size_t limit = sizeof(sockaddr_un::sun_path) - 1;
  const bool fits = !endpoint.path.empty() && endpoint.path.size() <= limit;
  if (fits && !contains(endpoint.path, '\0'))
    return endpoint;
  throw invalid_argument("store endpoint: expected a path of 1 to ",
                         limit,
                         " bytes after 'unix:', got '",
                         printable(text),
                         "'; use a shorter one");
}

// "host:port" or "[ipv6]:port"; nothing for another text.
std::optional<Endpoint> parse_host_and_port(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == npos)
    return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_bracketed)
    host = host.substr(1, host.size() - 2);
  // Without brackets nobody can tell an IPv6 address's last group from the port.
  const char* const refused = is_bracketed ? "[]/ " : "[]/ :";
  if (host.empty() || host.find_first_of(refused) != npos)
    return std::nullopt;
  const auto port = parse_count(text.substr(colon + 1));
  if (!port || *port > UINT16_MAX)
    return std::nullopt;
  Endpoint endpoint{.kind = Endpoint::Kind::tcp, .host = std::string(host)};
  endpoint.port = *port;
  return endpoint;
}

}  // namespace

Endpoint parse_endpoint(std::string_view text) {
  if (text.starts_with(kUnix))
    return parse_unix(text);
  if (text.starts_with(kTcp)) {
    if (const auto endpoint = parse_host_and_port(text.substr(kTcp.size())))
      return *endpoint;
  }
  throw invalid_argument(
      "store endpoint: expected tcp://host:port, tcp://[ipv6]:port or unix:path, got '",
      printable(text),
      "'");
}

// A unix socket has no host and no port.
std::string to_string(const Endpoint& endpoint) {
  if (endpoint.kind == Endpoint::Kind::unix_socket)
    return cat(kUnix, endpoint.path);
  return cat(kTcp, host_and_port(endpoint.host, endpoint.port));
}

std::string host_and_port(const std::string& host, uint16_t port) {
  const bool is_ipv6 = contains(host, ':');
  return is_ipv6 ? cat("[", host, "]:", port) : cat(host, ":", port);
}

}  // namespace muster
