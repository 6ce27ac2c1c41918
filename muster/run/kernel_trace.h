// GPU kernels and copies as events in a rank's trace, by Kineto, LibTorch's profiler. For
// `--trace=operators` on GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/trace/event_file.h"

namespace muster {

// A span of work on a device or, on the CPU, an operator of the thread that began the profile.
struct ProfiledSpan {
  std::string name;
  std::optional<int> gpu;  // nothing: the CPU
  int64_t stream = 0;      // of the GPU
  int64_t begin_ns = 0;    // on the activity file's clock
  int64_t end_ns = 0;
};

using ProfiledSpans = std::vector<ProfiledSpan>;

enum class Profiled { cpu, gpus };

// Begins and ends in one thread; one profile at a time in a process. Throws: c10::Error where
// LibTorch's profiler cannot begin, as when the program profiles itself.
void begin_profile(Profiled what);
ProfiledSpans end_profile();

// Each stream of each GPU has a track of its own.
void add_kernels(const ProfiledSpans& spans, TraceEventFile& events);

}  // namespace muster
