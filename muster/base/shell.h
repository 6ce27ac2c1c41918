// The shell: running a command that the user typed for it, as `--map-command` and
// `--host-discovery` take one, and quoting the words of a command line.
#pragma once

#include <string>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

// A command that has not ended with 0. Its exit code is -1 where a signal has ended it.
class ShellFailed : public Error {
 public:
  ShellFailed(int exit_code, const std::string& message)
      : Error(ErrorCode::io, message), exit_code_(exit_code) {}

  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

// Returns the command's standard output, at most a mebibyte of it. `variables` are added to its
// environment, as "NAME=value" words. Blocking: until it has ended. Throws: io naming `what` and
// the command when it cannot be started; ShellFailed.
std::string output_of_shell(const std::string& command,
                            const std::string& what,
                            const Strings& variables = {});

// "a path with blanks" as one word of a shell's command line.
std::string shell_quoted(const std::string& text);

// The words as a shell's command line. Plain ones are not quoted.
std::string shell_command(const Strings& words);

// What to do where a shell on another host has ended with this exit code instead of muster there:
// muster was not found, or may not be executed. Empty for another code.
std::string advice_for_shell(int exit_code);

}  // namespace muster
