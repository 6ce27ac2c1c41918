// Another user's program at a port: for tests that run as root, which alone can become somebody
// else.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "muster/base/fd.h"

namespace muster {

inline constexpr uid_t kNobody = 65534;

// As user nobody: listens on `port` of every IPv4 address with SO_REUSEADDR, while this lives.
// `user`: as whom instead.
class Stranger {
 public:
  explicit Stranger(int port, uid_t user = kNobody) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const Fd read_end(ends[0]);
    Fd write_end(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (user == ::geteuid() || ::setuid(user) == 0)
        listen(port, write_end.get());
      ::_exit(1);
    }
    write_end.reset();
    char ready = 0;
    EXPECT_EQ(::read(read_end.get(), &ready, 1), 1) << "it could not listen";
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }

 private:
  static void listen(int port, int ready) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        ::listen(fd, 16) != 0)
      return;
    (void)!::write(ready, "x", 1);
    for (;;)
      ::pause();
  }

  pid_t pid_ = -1;
};

}  // namespace muster
