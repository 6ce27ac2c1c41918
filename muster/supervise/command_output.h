// What a command of the user's prints that answers a question, as `--map-command` and
// `--host-discovery` take one: a list is asked for, and one that hangs is ended.
#pragma once

#include <chrono>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/functions.h"
#include "muster/base/no_copy.h"
#include "muster/base/rank_env.h"

namespace muster {

// A signal that asks this process to stop, or AlsoStopped, came before the answer.
class AskedToStop : public Error {
 public:
  using Error::Error;
};

// While this lives, a command that the same thread waits for also ends where `is_asked` says that
// its answer is not wanted any more: a stop that came from elsewhere than this process's signals.
// Called again and again.
class AlsoStopped : NoCopy {
 public:
  explicit AlsoStopped(Condition is_asked);
  ~AlsoStopped();
};

// How long such a command may take.
inline constexpr milliseconds kAnswerOfCommand = std::chrono::minutes(1);

// Returns the standard output of the shell's `command`. `variables` are added to its environment.
// It reads `stdin_fd`, or nothing where that is -1. Blocking: until it has ended, or the patience
// has, or a stop signal has come that waits for this process's loop (signal_pipe.h), or AlsoStopped
// says so; then it is killed. Throws: io naming `flag` and the command when it does not end with 0,
// or prints more than a mebibyte; timeout; AskedToStop.
std::string output_of_command(const std::string& command,
                              const std::string& flag,
                              Environment variables = {},
                              milliseconds patience = kAnswerOfCommand,
                              int stdin_fd = -1);

}  // namespace muster
