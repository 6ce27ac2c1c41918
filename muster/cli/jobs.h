// `muster ps` and `muster stop`: this user's running jobs on this host. Registered by main.cc.
#pragma once

namespace CLI {
class App;
}

namespace muster {

// Each adds its subcommand to `app`; when it was asked for it does its work and sets `*exit_code`.
// Errors leave as Error.
void add_ps(CLI::App& app, int* exit_code);
void add_stop(CLI::App& app, int* exit_code);

}  // namespace muster
