// A process of its own that takes leases, for the tests of leases: forked, told to go, and killed
// or let end.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "muster/base/fd.h"

namespace muster {

class LeaseProcess {
 public:
  // Runs `work` in a child; what it returns is the first line. The child then lives, with all that
  // `work` keeps open, until it is killed or this object ends.
  explicit LeaseProcess(const std::function<std::string()>& work) {
    int up[2];
    int down[2];
    if (::pipe2(up, O_CLOEXEC) != 0 || ::pipe2(down, O_CLOEXEC) != 0)
      std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(up[0]);
      ::close(down[1]);
      const std::string line = work() + "\n";
      [[maybe_unused]] ssize_t n = ::write(up[1], line.data(), line.size());
      char end = 0;
      n = ::read(down[0], &end, 1);  // until the parent closes its side, or dies
      ::_exit(0);
    }
    ::close(up[1]);
    ::close(down[0]);
    from_child_ = Fd(up[0]);
    to_child_ = Fd(down[1]);
  }
  ~LeaseProcess() { kill(); }
  LeaseProcess(const LeaseProcess&) = delete;
  LeaseProcess& operator=(const LeaseProcess&) = delete;

  pid_t pid() const { return pid_; }

  std::string line() {
    std::string text;
    char c = 0;
    while (::read(from_child_.get(), &c, 1) == 1 && c != '\n')
      text += c;
    return text;
  }

  void kill() {
    if (pid_ <= 0)
      return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  Fd from_child_;
  Fd to_child_;
};

}  // namespace muster
