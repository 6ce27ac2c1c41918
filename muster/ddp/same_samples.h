// Ranks that train on the same samples have gradients of the same bits before their average. The
// first backwards tell: samples that are the same there are the same later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/ddp/value_sample.h"

namespace muster {

// What a rank says of a gradient before the average.
struct RankGradient {
  int64_t rank = 0;  // of the job
  ValueSample sample = {};
};

// Two ranks that had the same gradients.
struct Twins {
  int64_t first = 0, second = 0;
};

// Judges the gradients of one tensor over the first backwards.
class SameSamples {
 public:
  static constexpr int judged_backwards = 3;

  // Takes the gradients of one backward, of all ranks in one order. Returns, once, two ranks whose
  // gradients were equal in each of the first backwards.
  std::optional<Twins> judge(const std::vector<RankGradient>& gradients);
  // Nothing more is to be found.
  bool is_decided() const;

 private:
  int judged_ = 0;
  Indices twins_;  // ranks whose gradients were those of the next one so far
};

// The warning of them, by this rank of the job.
std::string same_samples_warning(const Twins& twins, int64_t rank);

}  // namespace muster
