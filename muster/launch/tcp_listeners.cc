// The kernel is asked over netlink (inet_diag), which answers for one port within microseconds.
// Where it refuses, as in some sandboxes, /proc/net/tcp is read, which lists all sockets of the
// machine.
#include "muster/launch/tcp_listeners.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/launch/tcp_table.h"

namespace muster {

namespace {

constexpr uint32_t kListenStates = 1U << 10;  // TCP_LISTEN

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 request;
};

// An attribute of one byte, behind the message's fixed part.
std::optional<uint8_t> byte_attribute(const nlmsghdr& header, uint16_t type) {
  auto left = static_cast<int>(header.nlmsg_len - NLMSG_LENGTH(sizeof(inet_diag_msg)));
  const auto* const message = static_cast<const inet_diag_msg*>(NLMSG_DATA(&header));
  for (const auto* at = reinterpret_cast<const rtattr*>(message + 1); RTA_OK(at, left);
       at = RTA_NEXT(at, left)) {
    if (at->rta_type == type && RTA_PAYLOAD(at) >= 1)
      return *static_cast<const uint8_t*>(RTA_DATA(at));
  }
  return std::nullopt;
}

// A socket of IPv6 on every address takes connections of IPv4 too, unless it has refused them.
TcpListener listener_of(const nlmsghdr& header) {
  inet_diag_msg message;
  std::memcpy(&message, NLMSG_DATA(&header), sizeof(message));
  const auto& source = message.id.idiag_src;
  const bool every_address = all_of(source, [](auto word) { return word == 0; });
  const bool ipv4_too = message.idiag_family == AF_INET6 &&
                        byte_attribute(header, INET_DIAG_SKV6ONLY).value_or(0) == 0;
  return {.uid = message.idiag_uid,
          .inode = message.idiag_inode,
          .has_whole_port = every_address && ipv4_too};
}

enum class Answer { goes_on, is_whole, is_refusal };

// Adds the listeners of the messages in `bytes` that answer this question.
Answer take_messages(char* bytes, unsigned left, uint32_t question, TcpListenerList& found) {
  for (auto* at = reinterpret_cast<nlmsghdr*>(bytes); NLMSG_OK(at, left);
       at = NLMSG_NEXT(at, left)) {
    if (at->nlmsg_seq != question)
      continue;  // the rest of an earlier answer
    if (at->nlmsg_type == NLMSG_DONE)
      return Answer::is_whole;
    const bool is_socket = at->nlmsg_type == SOCK_DIAG_BY_FAMILY &&
                           at->nlmsg_len >= NLMSG_LENGTH(sizeof(inet_diag_msg));
    if (!is_socket)
      return Answer::is_refusal;
    found.push_back(listener_of(*at));
  }
  return Answer::goes_on;
}

// Nothing where /proc does not tell.
std::optional<TcpListenerList> listeners_in_proc(int port) {
  const auto table = tcp_table();
  if (!table)
    return std::nullopt;
  TcpListenerList found;
  for (const TcpEntry& entry : *table) {
    if (entry.port != port || !entry.listens)
      continue;
    found.push_back({.uid = entry.uid,
                     .inode = entry.inode,
                     .has_whole_port = entry.is_ipv6 && entry.on_every_address});
  }
  return found;
}

}  // namespace

// A refusal is for good: the kernel is not asked over netlink again.
std::optional<TcpListenerList> TcpListeners::on(int port) {
  if (!is_refused_ && !netlink_.valid()) {
    netlink_ =
        Fd(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
    is_refused_ = !netlink_.valid();
  }
  TcpListenerList found;
  if (!is_refused_ && ask(port, AF_INET, found) && ask(port, AF_INET6, found))
    return found;
  if (!std::exchange(is_refused_, true) || netlink_.valid())
    log_debug("the kernel does not list sockets over netlink; reading /proc/net/tcp instead");
  netlink_.reset();
  return listeners_in_proc(port);
}

// Adds the listeners of one address family. The kernel answers within the call that asks. False:
// this kernel does not answer.
bool TcpListeners::ask(int port, int family, TcpListenerList& found) {
  Question question{};
  question.header.nlmsg_len = sizeof(question);
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  question.header.nlmsg_seq = ++question_;
  question.request.sdiag_family = family;
  question.request.sdiag_protocol = IPPROTO_TCP;
  question.request.idiag_states = kListenStates;
  question.request.id.idiag_sport = htons(port);
  if (::send(netlink_.get(), &question, sizeof(question), 0) != sizeof(question))
    return false;
  alignas(nlmsghdr) std::array<char, 16384> answer;
  for (;;) {
    const ssize_t n = ::recv(netlink_.get(), answer.data(), answer.size(), 0);
    if (n <= 0)
      return false;
    const Answer taken = take_messages(answer.data(), n, question_, found);
    if (taken != Answer::goes_on)
      return taken == Answer::is_whole;
  }
}

}  // namespace muster
