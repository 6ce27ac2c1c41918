// Running a command that the user typed for the shell, as `--map-command` and `--host-discovery` take one.
#pragma once

#include <string>

namespace muster {

// Its standard output, at most a mebibyte of it. Blocking: until it has ended. Throws: io naming `what` and
// the command when it cannot be started or does not end with 0.
std::string output_of_shell(const std::string& command, const std::string& what);

}  // namespace muster
