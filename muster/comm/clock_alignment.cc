// Every rank tells its clock's offset and its host. A rank on rank 0's host takes rank 0's offset
// as it is; on another host it asks rank 0 for the time, and believes the quickest answer.
#include "muster/comm/clock_alignment.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <limits>
#include <string>

#include "muster/base/host_identity.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/trace/activity_clock.h"

namespace muster {

namespace {

constexpr int kQuestions = 16;
constexpr int kClockTag = 7001;

// Rank 0's part: it answers every question with its time.
void answer_with_clock(ProcessGroup& group, int rank, int64_t own_unix_ns) {
  const Tensor time = at::empty({1}, kLong);
  for (int question = 0; question < kQuestions; ++question) {
    group.recv(time, rank, kClockTag);
    time.fill_(activity_now() + own_unix_ns);
    group.send(time, rank, kClockTag);
  }
}

// The correction is added to the own clock; the uncertainty says how wrong that may be.
struct ClockOffset {
  int64_t correction_ns = 0;
  int64_t uncertainty_ns = std::numeric_limits<int64_t>::max();
};

// The answer is taken to be rank 0's time in the middle between question and answer.
ClockOffset ask_for_clock(ProcessGroup& group, int64_t own_unix_ns) {
  ClockOffset best;
  const Tensor time = at::empty({1}, kLong);
  time.fill_(0);
  for (int question = 0; question < kQuestions; ++question) {
    const int64_t before = activity_now() + own_unix_ns;
    group.send(time, 0, kClockTag);
    group.recv(time, 0, kClockTag);
    const int64_t half = (activity_now() + own_unix_ns - before) / 2;
    if (half >= best.uncertainty_ns)
      continue;
    best = {.correction_ns = time.item<int64_t>() - (before + half), .uncertainty_ns = half};
  }
  return best;
}

}  // namespace

void align_clock(ProcessGroup& group, const Activity* activity) {
  TraceEventFile* const events = activity == nullptr ? nullptr : activity->events();
  const int64_t own_unix_ns = events == nullptr ? 0 : activity->unix_minus_monotonic_ns();
  const std::string mine = events == nullptr ? "" : cat(own_unix_ns, " ", host_identity());
  const auto told = group.all_gather_bytes(mine, "clocks");
  if (events == nullptr || told[0].empty())
    return;
  const auto host_of = [&](int rank) {
    const std::string& text = told[rank];
    return text.substr(text.find(' ') + 1);
  };
  const std::string first_host = host_of(0);
  if (group.rank() != 0 && host_of(group.rank()) == first_host) {
    const int64_t first_unix_ns =
        parse_int(told[0].substr(0, told[0].find(' '))).value_or(own_unix_ns);
    return events->correct_clock(first_unix_ns - own_unix_ns, 0);
  }
  if (group.rank() != 0) {
    const ClockOffset offset = ask_for_clock(group, own_unix_ns);
    return events->correct_clock(offset.correction_ns, offset.uncertainty_ns);
  }
  events->correct_clock(0, 0);
  for (int rank = 1; rank < group.size(); ++rank) {
    const bool has_events = !told[rank].empty();
    if (has_events && host_of(rank) != first_host)
      answer_with_clock(group, rank, own_unix_ns);
  }
}

}  // namespace muster
