// The ways of starting N processes that launch_bench compares: muster's, and those of its peers
// that this machine has.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/measure.h"

namespace muster::bench {

struct Launcher {
  std::string name = {};
  Command command = {};     // one process of it starts all ranks
  int processes = 1;        // but plain fork and exec: as many as ranks
  int runs = 0;             // of the rounds, this many; torchrun takes seconds
  std::string absent = {};  // why it is not here; empty when it is
  Sample sample = {};
};

struct LauncherOptions {
  int ranks = 2;
  int runs = 30;
  int slow_runs = 3;        // of torchrun
  std::string python = {};  // that imports torch
  std::string muster = {};  // the program
};

// Plain fork and exec, muster, then the peers: in this order, absent ones named as such.
std::vector<Launcher> launchers(const LauncherOptions& options);

}  // namespace muster::bench
