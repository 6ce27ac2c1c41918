// The error for an unknown flag or subcommand, with the nearest known name. For the command line
// and
// --config.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muster {

// What is wrong with the first flag that the parser left over: "expected a flag of muster run, got
// '--max-restart'; did you mean '--max-restarts'?". Empty: none is left.
std::string unknown_flag(const CLI::App& app);

// What is wrong with the word in the place of a command's command: "expected ls, show, verify, diff
// or export, got 'lss'; did you mean 'ls'?". Empty: the command has none, one was named, or no
// command was.
std::string unknown_subcommand(const CLI::App& app);

// "; did you mean 'max-restarts'?" for `flag`, "--max-restart"; with the hyphens that
// `with_hyphens` asks for. Empty: none is near.
std::string suggested_flag(const CLI::App& command,
                           const std::string& flag,
                           bool with_hyphens = false);

}  // namespace muster
