// Benchmarks that start their own ranks, and print what rank 0 found without the prefix of a rank's output.
#pragma once

#include <functional>
#include <string>

#include "muster/run/context.h"

namespace muster {

// Runs `measure` on so many ranks of this host. With `print`, what rank 0 left is printed at the end. Returns
// the exit code.
int run_bench(int ranks, bool print, int argc, char** argv, const std::function<void(Context&)>& measure);

// For rank 0, once: its results as a text.
void leave_results(const std::string& text);

}  // namespace muster
