// `muster secret`: a new secret for a job whose processes are started by hand. Registered by
// main.cc.
#pragma once

namespace CLI {
class App;
}

namespace muster {

// Adds the subcommand to `app`; when it was asked for it prints and sets `*exit_code`. Errors leave
// as Error.
void add_secret(CLI::App& app, int* exit_code);

}  // namespace muster
