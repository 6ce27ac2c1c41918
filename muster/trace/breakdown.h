// Where the time of a job's steps went, over all ranks, and which rank holds the others up: from
// the ranks' activity files. Values and text; the launcher says it at a job's end, `muster report`
// may.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/trace/read_activity.h"

namespace muster {

struct RankTimes {
  int rank = 0;
  std::string host{};
  std::string device{};
  int64_t steps = 0;
  // By Category, from the rank's beginning to its end.
  std::array<double, kActivityCategories> seconds{};

  double all() const;
  double own() const;  // without waiting for other ranks

  // Without what is before the first step and after the last (other), which is no reason to wait
  // for a rank.
  double own_of_a_step() const;
};

struct Breakdown {
  std::vector<RankTimes> ranks{};
  std::array<double, kActivityCategories> shares{};  // of the time of all ranks; together 1

  // The rank that the others wait for: whose own time is longest, where that is more than a
  // twentieth longer than the median's. Why: the category that most of it is in.
  struct Straggler {
    int rank = 0;
    Category category = Category::compute;
    double seconds_a_step = 0;  // that it takes longer than the median
    double ratio = 1;           // of its own time to the median
  };
  std::optional<Straggler> straggler{};

  // "460 steps of 2 ranks: compute 78 %, communication 8 %, …", and a second line for the
  // straggler.
  Strings lines() const;
  std::string json() const;  // schema muster.breakdown/1
};

// Nothing where no rank has taken `least_steps`: then there is little to say of steps. Ranks that
// have not ended count until `now_ns` of their host's monotonic clock; where the job has ended
// (nothing), until their last sign of life.
std::optional<Breakdown> breakdown_of(const ActivityViews& views,
                                      std::optional<int64_t> now_ns,
                                      int64_t least_steps = 20);

}  // namespace muster
