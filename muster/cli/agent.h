// `muster agent`: what `muster run --hosts` starts on each host. Not for people: its spec comes on
// standard input.
#pragma once

namespace CLI {
class App;
}

namespace muster {

void add_agent(CLI::App& app, int* exit_code);

}  // namespace muster
