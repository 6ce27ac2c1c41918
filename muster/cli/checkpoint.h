// `muster checkpoint`: looks at checkpoints. Registered by main.cc.
#pragma once

namespace CLI {
class App;
}

namespace muster {

// Adds the subcommand to `app`; when it was asked for it does its work and sets `*exit_code`.
// Errors leave as Error.
void add_checkpoint(CLI::App& app, int* exit_code);

}  // namespace muster
