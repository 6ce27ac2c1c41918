// Kineto's times are of the wall clock, and the trace's of the monotonic one. The difference
// between the two is taken when the profile ends.
#include "muster/run/kernel_trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "muster/base/strings.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/category.h"

namespace muster {

namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// The tracks of GPU streams are numbered from here on, because no thread has such a number.
constexpr uint32_t kFirstTrack = 1U << 30;

}  // namespace

// Kineto traces CPU operators, or what runs on GPUs; both at once would be slow.
void begin_profile(Profiled what) {
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities = {what == Profiled::cpu ? ActivityType::CPU
                                                                   : ActivityType::CUDA};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
}

ProfiledSpans end_profile() {
  const auto result = torch::autograd::profiler::disableProfiler();
  const int64_t unix_minus_monotonic = nanoseconds_of(CLOCK_REALTIME) - activity_now();
  ProfiledSpans spans;
  for (const auto& event : result->events()) {
    const auto begin = static_cast<int64_t>(event.startNs());
    const auto end = static_cast<int64_t>(event.endNs());
    ProfiledSpan span{.name = event.name(),
                      .gpu = {},
                      .stream = event.deviceResourceId(),
                      .begin_ns = begin - unix_minus_monotonic,
                      .end_ns = end - unix_minus_monotonic};
    if (event.deviceType() != c10::DeviceType::CPU)
      span.gpu = event.deviceIndex();
    spans.push_back(std::move(span));
  }
  return spans;
}

// A stream that appears for the first time gets the next track.
void add_kernels(const ProfiledSpans& spans, TraceEventFile& events) {
  std::map<std::pair<int, int64_t>, uint32_t> tracks;
  for (const ProfiledSpan& span : spans) {
    if (!span.gpu)
      continue;
    const uint32_t next = kFirstTrack + tracks.size();
    const auto [track, is_new] = tracks.try_emplace({*span.gpu, span.stream}, next);
    if (is_new)
      events.add_thread(cat("GPU ", *span.gpu, " stream ", span.stream).c_str(), track->second);
    events.add_span(span.name.c_str(),
                    static_cast<uint32_t>(Category::compute),
                    track->second,
                    span.begin_ns,
                    std::max(span.begin_ns, span.end_ns));
  }
}

}  // namespace muster
