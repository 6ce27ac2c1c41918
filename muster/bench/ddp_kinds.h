// The kinds of training that `muster-bench ddp` compares, each with a model of its own: alone, or
// data-parallel over a backend. They take turns step by step, so that what else the machine does
// meets them all alike.
#pragma once

#include <string>
#include <vector>

#include "muster/bench/ddp_bench.h"
#include "muster/bench/paired_times.h"
#include "muster/run/context.h"

namespace muster {

// That can be measured where ranks have GPUs of their own, or not. The first is "none".
std::vector<std::string> ddp_kind_names(bool by_nccl);

struct DdpTimes {
  PairedTimes wall;       // milliseconds, of the slowest rank
  PairedTimes processor;  // of all threads of all ranks together: what others do on the machine is
                          // not in it, nor are waits that sleep
};

// Collective. Of `options.steps` rounds of steps, one of each kind.
DdpTimes measure_ddp_kinds(Context& ctx, const DdpBenchOptions& options);

}  // namespace muster
