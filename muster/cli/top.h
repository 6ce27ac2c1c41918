// `muster top`: the ranks of a running job, as they are now.
#pragma once

namespace CLI {
class App;
}

namespace muster {

void add_top(CLI::App& app, int* exit_code);

}  // namespace muster
