// `muster checkpoint diff` and `muster checkpoint export`. Registered by checkpoint.cc.
#pragma once

namespace CLI {
class App;
}

namespace muster {

void add_checkpoint_diff(CLI::App& command, int* exit_code);
void add_checkpoint_export(CLI::App& command);

}  // namespace muster
