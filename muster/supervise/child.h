// One child process: how to start it and how it ended. Used by ProcessSet; knows nothing of ranks,
// devices or logs. Starting is safe in a program with threads and a large memory image (one that
// links LibTorch): the child shares the parent's memory until exec and makes only async-signal-safe
// calls.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

struct ChildOptions {
  Strings argv{};
  // The path of what is executed; empty: argv[0], looked up in the child's PATH.
  std::string program{};
  StringMap environment{};             // the whole of it
  std::string working_directory{};     // empty: the parent's
  int stdin_fd = -1;                   // -1: /dev/null; 0: inherited
  int stdout_fd = 1;                   // duplicated onto the child's 1
  int stderr_fd = 2;                   // duplicated onto the child's 2
  Ints inherit_fds{};                  // kept open in the child, under the same numbers
  Ints cpus{};                         // the only ones it may run on; empty: the parent's
  std::optional<rlimit> open_files{};  // RLIMIT_NOFILE; nothing: the parent's
};

// A program that cannot be started. `exit_code` is the shell's: 127 not found, 126 found but not
// executable.
class SpawnError : public Error {
 public:
  SpawnError(int exit_code,
             const std::string& message,
             std::source_location where = std::source_location::current())
      : Error(exit_code == 127 ? ErrorCode::unavailable : ErrorCode::invalid_argument,
              message,
              where),
        exit_code_(exit_code) {}
  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

struct Child {
  pid_t pid = -1;
  Fd pidfd;
};

// The program's path: `name` itself when it has a slash, else the first executable file of that
// name in `search_path` (PATH's form). Throws: SpawnError when there is none or it cannot be
// executed.
std::string find_program(const std::string& name, const std::string& search_path);

// The texts as execve takes them, with a null at the end. They must outlive the answer.
std::vector<char*> exec_pointers(const Strings& texts);
// Each variable as execve takes it, "NAME=value".
Strings exec_entries(const StringMap& environment);

// Starts the child as the leader of its own process group, with every signal unblocked and at its
// default (an ignored SIGHUP stays ignored: nohup), to be killed by the kernel when the calling
// thread ends. Blocking: until exec has succeeded or failed. Throws: SpawnError; io when no process
// can be made.
Child spawn_child(const ChildOptions& options);

// "SIGTERM" for 15; "signal 99" for a number without a name.
std::string signal_name(int signal);

}  // namespace muster
