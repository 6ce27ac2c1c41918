// Who is a stranger at MASTER_PORT: for tests that run as root, which alone can become somebody
// else.
#include "muster/launch/port_watch.h"

#include <gmock/gmock.h>

#include "tests/support/stranger.h"

namespace muster {
namespace {

constexpr uid_t kUser = 65533;  // of the job

int free_port() {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

// Whether a launcher of user `kUser` takes a listener of that other one for a stranger.
bool is_strange(uid_t listener) {
  const int port = free_port();
  const Stranger other(port, listener);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    if (::setuid(kUser) != 0)
      ::_exit(2);
    bool strange = false;
    EventLoop loop;
    const PortWatch watch(loop, port, [&](const std::string& /*text*/) { strange = true; });
    ::_exit(strange ? 1 : 0);
  }
  int status = 0;
  ::waitpid(launcher, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2);
  return WEXITSTATUS(status) == 1;
}

TEST(PortWatch, AnotherUserIsAStranger) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  EXPECT_TRUE(is_strange(kNobody));
  EXPECT_FALSE(is_strange(kUser));
}

// A rank that a daemon has started, as docker's does.
TEST(PortWatch, RootIsNone) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  EXPECT_FALSE(is_strange(0));
}

}  // namespace
}  // namespace muster
