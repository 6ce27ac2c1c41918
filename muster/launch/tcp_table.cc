// /proc/net/tcp and tcp6 list all TCP sockets of this network namespace with their inodes. The
// process of a socket is the one that has a link to that inode among its descriptors, in
// /proc/<pid>/fd.
#include "muster/launch/tcp_table.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/process_status.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"

namespace muster {

namespace {

constexpr int64_t kListenState = 0x0A;

std::optional<int64_t> parse_hex(std::string_view text) {
  return parse_as<int64_t>(text, 16);
}

// Reads a line of the table: "sl local_address:port remote:port state queues timer retransmits uid
// timeout inode …". Nothing for the heading.
std::optional<TcpEntry> entry_of(const std::string& line, bool is_ipv6) {
  Strings words = split(line, ' ');
  std::erase(words, "");
  if (words.size() < 10)
    return std::nullopt;
  const std::string_view local = words[1];
  const size_t colon = local.rfind(':');
  if (colon == npos)
    return std::nullopt;
  const auto port = parse_hex(local.substr(colon + 1));
  const auto state = parse_hex(words[3]);
  const auto uid = parse_int(words[7]);
  const auto inode = parse_int(words[9]);
  if (!port || !state || !uid || !inode)
    return std::nullopt;
  return TcpEntry{.port = static_cast<int>(*port),
                  .listens = *state == kListenState,
                  .uid = static_cast<uint32_t>(*uid),
                  .inode = static_cast<uint64_t>(*inode),
                  .on_every_address = local.find_first_not_of('0') == colon,
                  .is_ipv6 = is_ipv6};
}

// Other users' descriptors are hidden from all but root.
bool has_socket(int pid, uint64_t inode) {
  const auto wanted = cat("socket:[", inode, "]");
  return any_of(paths_in(cat("/proc/", pid, "/fd")), [&](const auto& fd) {
    std::error_code gone;
    return std::filesystem::read_symlink(fd, gone) == wanted;
  });
}

}  // namespace

// Nothing where neither table can be read.
std::optional<TcpEntries> tcp_table(const std::string& root) {
  std::optional<TcpEntries> entries;
  for (const bool is_ipv6 : {false, true}) {
    const auto text = try_read_file(root + (is_ipv6 ? "/proc/net/tcp6" : "/proc/net/tcp"));
    if (!text)
      continue;  // no IPv6, or a hidden /proc
    if (!entries)
      entries.emplace();
    for (const auto& line : split(*text, '\n')) {
      if (auto entry = entry_of(line, is_ipv6))
        entries->push_back(*entry);
    }
  }
  return entries;
}

// Empty where no process that this user may look into has the socket.
std::string process_with_socket(uint64_t inode) {
  for (const int pid : numbers_in_folder("/proc")) {
    if (has_socket(pid, inode))
      return cat("process ", pid, framed(" (", printable(process_status(pid).command), ")"));
  }
  return "";
}

}  // namespace muster
