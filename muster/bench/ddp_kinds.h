// The kinds of training that `muster-bench ddp` compares, each with a model of its own: alone, or
// data-parallel over a backend. They take turns step by step, so that what else the machine does
// meets them all alike.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/bench/ddp_bench.h"
#include "muster/bench/paired_times.h"
#include "muster/run/context.h"

namespace muster {

// Returns the kinds that can be measured where ranks have GPUs of their own (NCCL), or have not.
// The first is "none".
Strings ddp_kind_names(bool by_nccl);

// Milliseconds of each step of each kind.
struct DdpTimes {
  PairedTimes wall;  // of the slowest rank
  // Processor time of all threads of all ranks together. Other programs of the machine and waits
  // that sleep are not in it.
  PairedTimes processor;
};

// Times `options.steps` rounds of steps, one of each kind in a round. Collective: yes.
DdpTimes measure_ddp_kinds(Context& ctx, const DdpBenchOptions& options);

}  // namespace muster
