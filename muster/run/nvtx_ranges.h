// Shows spans as NVTX ranges in NVIDIA's profilers: nsys profile muster run …
#pragma once

namespace muster {

// Takes effect for all threads' spans, if LibTorch has CUDA; otherwise does nothing. A range costs
// some nanoseconds if no profiler is attached.
void show_spans_in_nvtx();

}  // namespace muster
