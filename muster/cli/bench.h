// `muster bench`: hands over to muster-bench, the program that has LibTorch. Called by main.cc.
#pragma once

namespace CLI {
class App;
}

namespace muster {

// Adds the subcommand to `app`; it takes all that follows. When it was asked for it becomes
// muster-bench, or leaves as Error where that cannot be started.
void add_bench(CLI::App& app);

}  // namespace muster
