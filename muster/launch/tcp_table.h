// The kernel's table of this network namespace's TCP sockets, as /proc shows it, and whose they
// are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster {

struct TcpEntry {
  int port = 0;
  bool listens = false;
  uint32_t uid = 0;
  uint64_t inode = 0;
  bool on_every_address = false;  // of IPv4, or of IPv6 and perhaps IPv4
  bool is_ipv6 = false;
};

using TcpEntries = std::vector<TcpEntry>;

// Listening and connected sockets (merely bound ones are not in it). Nothing where /proc shows
// neither table.
std::optional<TcpEntries> tcp_table(const std::string& root = "");

// "process 4711 (python3)": who has the socket open; empty when nobody does or we may not know.
std::string process_with_socket(uint64_t inode);

}  // namespace muster
