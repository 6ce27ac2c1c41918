// `muster-bench ddp`: what data-parallel training adds to a step, by backend, all in one run.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

struct DdpBenchOptions {
  int ranks = 2;
  std::string model = "mlp";  // or cnn
  int64_t batch = 64;         // a rank
  int steps = 10;             // of each kind, each round
  int rounds = 3;             // the kinds take turns; the least of the rounds' medians counts
  bool json = false;
};

// Starts its own ranks, as many as asked, on this host. Returns the exit code.
int bench_ddp(const DdpBenchOptions& options, int argc, char** argv);

}  // namespace muster
