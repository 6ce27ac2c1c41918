// Which of this host's addresses reaches a given one: asked of the routing table, not of the host's
// name.
#pragma once

#include <sys/socket.h>

#include <string>

namespace muster {

// The address in digits; empty when it has none.
std::string numeric_text(const sockaddr* address, socklen_t size);

// The local address that traffic to `host` leaves from ("127.0.0.1" for loopback or an empty host).
// Blocking: for name resolution. Throws: unavailable when `host` does not resolve or there is no
// route.
std::string address_towards(const std::string& host);

// The network interface that has this local address; empty when none has.
std::string interface_with(const std::string& address);

// True for an address (or "localhost") that no other machine can reach.
bool is_loopback_address(const std::string& address);

// "fe80::1%eth0": an IPv6 address, of which the scope may be said; no brackets.
bool is_ipv6_address(const std::string& text);

// "[::1]:4" for "::1:4": the address before the last colon in brackets. Empty where that is none.
std::string with_brackets(const std::string& text);

// "::1:4", which means ::0.1.0.4: no machine has such an address (RFC 4291), so a number was meant.
bool lacks_brackets(const std::string& text);

// The address of this machine that leads to others: by the default route, else that of the first
// interface; empty when there is none.
std::string outward_address();

}  // namespace muster
