// The error for an unknown flag or subcommand, with the nearest known name. For the command line
// and --config.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muster {

// Says what is wrong with the first flag that the parser left over: "expected a flag of muster run,
// got '--max-restart'; did you mean '--max-restarts'?". Empty: none is left.
std::string unknown_flag(const CLI::App& app);

// Says what is wrong with the word in the place of a command's command: "expected ls, show, verify,
// diff or export, got 'lss'; did you mean 'ls'?". Empty: the command has no commands, one was
// named, or no command was.
std::string unknown_subcommand(const CLI::App& app);

// Returns "; did you mean 'max-restarts'?" for the flag "--max-restart", with or without hyphens
// before the name. Empty: no name is near.
std::string suggested_flag(const CLI::App& command,
                           const std::string& flag,
                           bool with_hyphens = false);

}  // namespace muster
