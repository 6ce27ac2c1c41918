// Which rank left the others' common path first: the last collectives of all ranks, side by side.
// For the card of a failed job and `muster report`. A value of values; reads activity files and
// nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/trace/read_activity.h"

namespace muster {

// In one group, at the first collective where its ranks differ.
struct Divergence {
  enum class Kind {
    never_began,  // `ranks` did not come to it, the others did
    other_call,   // `ranks` made another call
    never_ended,  // all began it; `ranks` have not ended it, others have
  };
  Kind kind = Kind::never_began;
  std::string group{};   // "world"
  int64_t sequence = 0;  // of the collective in the group
  std::string call{};    // the others': "all_reduce #41 f32[1000]"
  std::string theirs{};  // of `ranks`, where it is another
  Ints ranks{};
  Ints others{};
  int64_t unix_ns = 0;  // when the first of the others began it
  // The span that the first of `ranks` was in when it was last seen, and its last call.
  std::string where{};

  // "rank 2 left the common path first: it never began all_reduce #41 f32[1000] of world, which
  // rank(s) 0, 1 began; it was in tokenize; last all_reduce #40 f32[1000]".
  std::string text() const;
};

// Compares the ranks whose files are given; earliest difference first, one a group. Calls that a
// rank's file holds no longer are not compared.
std::vector<Divergence> compare_activity(const ActivityViews& views);

// Compares the last attempt in the run folder, or `attempt`. Files that cannot be read are left
// out.
std::vector<Divergence> compare_activity(const std::string& run_dir,
                                         std::optional<int> attempt = {});

}  // namespace muster
