// Describes the program's commands and flags as data: they are read off the flags themselves, so
// that completion and manual pages say what --help says.
#pragma once

#include <string>
#include <vector>

#include "muster/base/strings.h"

namespace CLI {
class App;
}

namespace muster {

struct FlagHelp {
  Strings names{};      // "-n", "--nproc-per-node"
  std::string value{};  // "N"; "" for a flag without one
  std::string text{};
  std::string variable{};  // of the environment; or ""
};

struct CommandHelp {
  Strings path{};  // {"muster", "tasks", "show"}
  std::string text{};
  std::string examples{};
  std::vector<FlagHelp> flags{};
  std::vector<FlagHelp> arguments{};  // by place: their names are "PROGRAM", "RUN_DIR"
  std::vector<CommandHelp> commands{};

  const std::string& name() const { return path.back(); }
};

CommandHelp describe_command(const CLI::App& app);

// Lets the help of each command say its exit codes: those that all commands have, where its own
// text names none.
void say_exit_codes(CLI::App& app);

}  // namespace muster
