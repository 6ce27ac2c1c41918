// The shell: running a command that the user typed for it, as `--map-command` and
// `--host-discovery` take one, and quoting the words of a command line.
#pragma once

#include <string>
#include <vector>

namespace muster {

// Returns the command's standard output, at most a mebibyte of it. `variables` are added to its
// environment, as "NAME=value" words. Blocking: until it has ended. Throws: io naming `what` and
// the command when it cannot be started or does not end with 0.
std::string output_of_shell(const std::string& command,
                            const std::string& what,
                            const std::vector<std::string>& variables = {});

// "a path with blanks" as one word of a shell's command line.
std::string shell_quoted(const std::string& text);

// The words as a shell's command line. Plain ones are not quoted.
std::string shell_command(const std::vector<std::string>& words);

}  // namespace muster
