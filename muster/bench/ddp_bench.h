// `muster-bench ddp`: what data-parallel training adds to a step, by backend, all in one run.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/strings.h"

namespace muster {

struct DdpBenchOptions {
  int ranks = 2;
  std::string model = "mlp";  // or cnn, gpt
  int64_t batch = 0;          // a rank; 0: default_batch()
  int steps = 10;             // of each kind in each round; the kinds take turns step by step
  int rounds = 3;             // each starts its processes anew, and Python's take their turn
  Strings kinds{};            // beside "none"; empty: all
  std::string python{};       // a Python with torch, whose DDP is timed beside; empty: none
  bool json = false;
};

// Starts its own ranks, as many as asked, on this host. Returns the exit code.
int bench_ddp(DdpBenchOptions options, int argc, char** argv);

}  // namespace muster
