// `muster report`: a run's folder as a page.
#pragma once

namespace CLI {
class App;
}

namespace muster {

void add_report(CLI::App& app, int* exit_code);

}  // namespace muster
