// `muster devices`: what this machine, or a captured one, has. Registered by main.cc.
#pragma once

namespace CLI {
class App;
}

namespace muster {

// Adds the subcommand to `app`; when it was asked for it prints and sets `*exit_code`. Errors leave
// as Error.
void add_devices(CLI::App& app, int* exit_code);

}  // namespace muster
