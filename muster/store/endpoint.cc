#include "muster/store/endpoint.h"

#include <sys/un.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kUnix = "unix:";

Endpoint parse_unix(std::string_view text) {
  Endpoint endpoint{.kind = Endpoint::Kind::unix_socket, .host = {}};
  endpoint.path = text.substr(kUnix.size());
  const size_t limit = sizeof(sockaddr_un::sun_path) - 1;
  if (endpoint.path.empty() || endpoint.path.size() > limit ||
      endpoint.path.find('\0') != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                cat("store endpoint: expected a path of 1 to ",
                    limit,
                    " bytes after 'unix:', got '",
                    text,
                    "'; use a shorter one"));
  }
  return endpoint;
}

}  // namespace

Endpoint parse_endpoint(std::string_view text) {
  if (text.starts_with(kUnix))
    return parse_unix(text);
  const auto bad = [&] {
    return Error(
        ErrorCode::invalid_argument,
        cat("store endpoint: expected tcp://host:port, tcp://[ipv6]:port or unix:path, got '",
            text,
            "'"));
  };
  if (!text.starts_with(kTcp))
    throw bad();
  const std::string_view rest = text.substr(kTcp.size());
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos)
    throw bad();
  std::string_view host = rest.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed)
    host = host.substr(1, host.size() - 2);
  // Without brackets nobody can tell an IPv6 address's last group from the port.
  if (host.empty() || host.find_first_of(bracketed ? "[]/ " : "[]/ :") != std::string_view::npos)
    throw bad();
  const auto port = parse_int(rest.substr(colon + 1));
  if (!port || *port < 0 || *port > UINT16_MAX)
    throw bad();
  return {
      .kind = Endpoint::Kind::tcp, .host = std::string(host), .port = static_cast<uint16_t>(*port)};
}

std::string to_string(const Endpoint& endpoint) {
  if (endpoint.kind == Endpoint::Kind::unix_socket)
    return cat(kUnix, endpoint.path);
  const bool ipv6 = endpoint.host.find(':') != std::string::npos;
  return cat(kTcp, ipv6 ? "[" : "", endpoint.host, ipv6 ? "]" : "", ":", endpoint.port);
}

}  // namespace muster
