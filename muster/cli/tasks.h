// `muster tasks`: many commands over this machine's GPUs and CPUs. Registered by main.cc.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace muster {

// Adds the subcommand to `app`; when it was asked for it runs the tasks and sets `*exit_code`: 0
// all are done, 1 some are not, 124 the time limit was over, 128 + signal. Takes what follows "--"
// off `args`. Errors leave as Error.
void add_tasks(CLI::App& app, std::vector<std::string>& args, int* exit_code);

}  // namespace muster
