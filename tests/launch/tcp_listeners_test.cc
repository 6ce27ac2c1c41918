#include "muster/launch/tcp_listeners.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "muster/launch/tcp_table.h"
#include "tests/device/scratch.h"
#include "tests/support/stranger.h"

namespace muster {
namespace {

struct Listening {
  Fd fd;
  int port = 0;
  uint64_t inode = 0;
};

// On a free port, of every address; of IPv6 alone with `ipv6_only`.
Listening listening_on(int family, bool ipv6_only = false) {
  Listening socket{.fd = Fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const int only = ipv6_only ? 1 : 0;
  if (family == AF_INET6)
    ::setsockopt(socket.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  sockaddr_storage address = {};
  address.ss_family = static_cast<sa_family_t>(family);
  socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  EXPECT_EQ(::bind(socket.fd.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(socket.fd.get(), 1), 0);
  size = sizeof(address);
  EXPECT_EQ(::getsockname(socket.fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  socket.port =
      ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);  // at the same place in both
  struct stat status = {};
  ::fstat(socket.fd.get(), &status);
  socket.inode = status.st_ino;
  return socket;
}

void expect_found(TcpListeners& listeners) {
  const Listening ipv4 = listening_on(AF_INET);
  const auto found = listeners.on(ipv4.port);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->size(), 1U);
  EXPECT_EQ(found->front().uid, ::geteuid());
  EXPECT_EQ(found->front().inode, ipv4.inode);
  EXPECT_FALSE(found->front().has_whole_port) << "IPv6 is free";

  const Listening both = listening_on(AF_INET6);
  const auto found_both = listeners.on(both.port);
  ASSERT_TRUE(found_both && found_both->size() == 1);
  EXPECT_EQ(found_both->front().inode, both.inode);
  EXPECT_TRUE(found_both->front().has_whole_port);
}

TEST(TcpListeners, AreFoundOnBothFamilies) {
  TcpListeners listeners;
  expect_found(listeners);
  const Listening ipv6 = listening_on(AF_INET6, true);
  const auto found = listeners.on(ipv6.port);
  ASSERT_TRUE(found && found->size() == 1);
  EXPECT_FALSE(found->front().has_whole_port) << "IPv4 is free";
}

TEST(TcpListeners, WhoIsOnlyBoundDoesNotListen) {
  Listening socket = listening_on(AF_INET);
  const int port = socket.port;
  socket.fd.reset();
  EXPECT_THAT(TcpListeners().on(port), testing::Optional(testing::IsEmpty()));
}

TEST(TcpListeners, OfAnotherUserHaveItsId) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  Listening socket = listening_on(AF_INET);
  const int port = socket.port;
  socket.fd.reset();
  const Stranger stranger(port);
  const auto found = TcpListeners().on(port);
  ASSERT_TRUE(found && found->size() == 1);
  EXPECT_EQ(found->front().uid, kNobody);
  EXPECT_EQ(process_with_socket(found->front().inode).find(cat("process ", stranger.pid(), " (")),
            0U);
}

// As a container's seccomp profile: no sockets of netlink.
bool forbid_netlink() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(TcpListeners, AreFoundInProcWhereNetlinkIsForbidden) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!forbid_netlink())
      ::_exit(77);
    TcpListeners listeners;
    expect_found(listeners);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
}

TEST(TcpTable, ReadsWhatTheKernelWrites) {
  const ScratchFolder root;
  EXPECT_FALSE(tcp_table(root.path())) << "no /proc";
  root.write("proc/net/tcp",
             "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  "
             "timeout inode\n"
             "   0: 0100007F:733D 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1004    "
             "    0 4711 1 x\n"
             "   1: 00000000:0016 00000000:0000 06 00000000:00000000 00:00000000 00000000     0    "
             "    0 0 1 x\n"
             "   2: damaged\n   3: 00000000:zz 0:0 0A 0:0 0:0 0 0 0 1 1 x\n");
  const auto table = tcp_table(root.path());
  ASSERT_TRUE(table && table->size() == 2);
  EXPECT_EQ(table->at(0).port, 29501);
  EXPECT_TRUE(table->at(0).listens);
  EXPECT_EQ(table->at(0).uid, 1004U);
  EXPECT_EQ(table->at(0).inode, 4711U);
  EXPECT_FALSE(table->at(0).on_every_address);
  EXPECT_FALSE(table->at(1).listens);
  EXPECT_TRUE(table->at(1).on_every_address);
}

}  // namespace
}  // namespace muster
