// Benchmarks that start their own ranks, and get what rank 0 found without the prefix of a rank's
// output.
#pragma once

#include <functional>
#include <string>

#include "muster/base/strings.h"
#include "muster/run/context.h"

namespace muster {

struct BenchRun {
  int exit_code = 0;
  std::string results{};  // what rank 0 left; empty after a failure
};

// This process is a rank that a benchmark started; run_bench() then never returns results.
bool is_bench_rank();

// Runs `measure` on so many ranks of this host.
BenchRun run_bench(int ranks, int argc, char** argv, const std::function<void(Context&)>& measure);

// Runs another program's ranks, of which rank 0 writes into the file that MUSTER_BENCH_RESULTS
// names.
BenchRun run_bench_program(int ranks, const Strings& argv);

// Hands rank 0's results over as a text. Rank 0 calls it once.
void leave_results(const std::string& text);

}  // namespace muster
