// A text may be a name, an IPv4 address or an IPv6 address. The last has colons itself, so it
// stands in brackets where a port follows.
#include "muster/cli/host_port.h"

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/route.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/usage.h"

namespace muster {

namespace {

// Removes "tcp://", which other programs write before an address: there is nothing else here.
std::string without_scheme(const std::string& text, const std::string& flag) {
  const size_t end = text.find("://");
  if (end == npos)
    return text;
  if (text.substr(0, end) != "tcp")
    throw bad_flag(
        flag, "HOST:PORT", text, "for etcd, --rdzv-conf protocol=https says how it is spoken to");
  return text.substr(end + 3);
}

// Throws: invalid_argument for an IPv6 address with a port, but without brackets. "::1:29411" is no
// address, and "::1:2941" is none that a machine has; "fe80::1:2941" is one without a port,
// whatever was meant.
void check_brackets(const std::string& host, const std::string& given, const std::string& flag) {
  const bool is_name = !contains(host, ':');
  if (is_name || (is_ipv6_address(host) && !lacks_brackets(host)))
    return;
  const auto example = text_or(with_brackets(host), "[fe80::1]:29400");
  throw bad_flag(
      flag, "an IPv6 address in brackets where a port follows", given, cat("as in ", example));
}

}  // namespace

std::string in_brackets(const std::string& host) {
  const bool is_ipv6 = contains(host, ':');
  return is_ipv6 ? cat("[", host, "]") : host;
}

HostPort parse_host_port(const std::string& given, const std::string& flag) {
  const auto text = without_scheme(given, flag);
  const size_t colon = text.rfind(':');
  const bool is_in_brackets = colon != npos && text.find(']', colon) != text.npos;
  const bool is_of_address = !text.starts_with('[') && text.find(':') != colon;
  const bool has_port = colon != npos && !is_in_brackets && !is_of_address;
  HostPort result{.host = has_port ? text.substr(0, colon) : text};
  if (result.host.starts_with('[') && result.host.ends_with(']'))
    result.host = result.host.substr(1, result.host.size() - 2);
  if (has_port) {
    const auto port = parse_number(text.substr(colon + 1), 0, 65535);
    if (!port)
      throw bad_flag(flag, "HOST:PORT with a port from 1 to 65535", given);
    result.port = *port;
  }
  if (result.host.empty() || result.host.find_first_of(" \t\n/") != npos)
    throw bad_flag(flag, "HOST:PORT", given);
  check_brackets(result.host, given, flag);
  return result;
}

}  // namespace muster
