// `muster-bench collectives`: how long a collective takes, by size and backend, all in one run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/strings.h"

namespace muster {

struct CollectivesBenchOptions {
  int ranks = 2;
  std::string op = "all_reduce";  // or reduce_scatter, all_gather, broadcast, all_to_all
  // gloo, shm, shm-in-place, nccl, mpi; empty: those that these ranks can use
  Strings backends{};
  std::string dtype = "float32";
  int64_t min_bytes = 4;
  int64_t max_bytes = 64 << 20;
  int64_t factor = 4;    // from one size to the next
  double seconds = 0.2;  // for each size and backend, at least
  int rounds = 3;        // the backends take turns; the least of the rounds' medians counts
  bool json = false;
  std::string svg{};  // a file for the plot
};

// One row of the table. Source: nccl-tests' columns.
struct CollectiveTime {
  std::string backend;
  int64_t bytes = 0;
  int64_t count = 0;  // elements
  double us = 0;      // of the slowest rank
  double algbw = 0;   // GB/s: bytes / time
  double busbw = 0;   // algbw times what the operation has to move over a link
  int64_t wrong = 0;  // elements that are not what they must be
};
using CollectiveTimes = std::vector<CollectiveTime>;

// Starts its own ranks, as many as asked, on this host. Returns the exit code: 1 when a result was
// wrong.
int bench_collectives(const CollectivesBenchOptions& options, int argc, char** argv);

// The plot: time over bytes, both logarithmic, a line for every backend. A whole SVG document.
std::string draw_times(const CollectiveTimes& times, const std::string& title);

}  // namespace muster
