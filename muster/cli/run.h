// `muster run` (start ranks, one per device) and `muster plan` (only say where they would go).
// Registered by main.cc.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace muster {

// Add the subcommands to `app`. `args` is the command line after the subcommand's name: PROGRAM and
// what follows are taken off it, so that `app` parses flags only. When asked for, the callback runs
// the job and sets
// `*exit_code`. Errors leave as Error.
void add_run(CLI::App& app, std::vector<std::string>& args, int* exit_code);
void add_plan(CLI::App& app, std::vector<std::string>& args, int* exit_code);

}  // namespace muster
