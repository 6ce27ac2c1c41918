// Spans as NVTX ranges, which NVIDIA's profilers show: nsys profile muster run …
#pragma once

namespace muster {

// From now on, all threads' spans, where LibTorch's CUDA part is there; else it does nothing. A range costs
// some nanoseconds where no profiler looks on.
void show_spans_in_nvtx();

}  // namespace muster
