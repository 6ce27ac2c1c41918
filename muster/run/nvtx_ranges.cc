#include "muster/run/nvtx_ranges.h"

#include <torch/csrc/profiler/stubs/base.h>

#include "muster/trace/activity.h"

namespace muster {

namespace {

// LibTorch's CUDA part registers its stubs when it is loaded. The ones before that say that they
// are not enabled, and throw when they are called.
const torch::profiler::impl::ProfilerStubs& nvtx() {
  return *torch::profiler::impl::cudaStubs();
}

void begin_range(const char* name) {
  nvtx().rangePush(name);
}
void end_range() {
  nvtx().rangePop();
}

}  // namespace

void show_spans_in_nvtx() {
  if (nvtx().enabled())
    Activity::set_span_hooks(begin_range, end_range);
}

}  // namespace muster
