// The flags of `muster run` and `muster plan`, under the titles that --help has.
#pragma once

namespace CLI {
class App;
}

namespace muster {

struct RunFlags;

// The values must live as long as the command.
void add_run_flags(CLI::App* command, RunFlags& flags);
void add_plan_flags(CLI::App* command, RunFlags& flags);

}  // namespace muster
