// Finds the bucket size (bucket_cap.h) with the shortest backwards: tries a few sizes, twice, and
// measures. The reducer (gradient_reducer.cc) remakes its buckets in between, and makes the ranks
// agree. Knows nothing of either.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/ddp/bucket_cap.h"

namespace muster {

class BucketTrial {
 public:
  // `model_bytes` of gradients: larger buckets are not tried. If the cap is not automatic, there is
  // nothing to try.
  BucketTrial(const BucketCap& cap, size_t model_bytes);

  bool running() const { return running_; }
  const BucketCap& cap() const { return cap_; }  // the cap for the buckets now

  void begin_buckets() { backwards_ = 0; }  // they are new, for whatever reason
  void count(double seconds);               // a reduced backward has ended
  bool has_enough() const { return running_ && times_this_pass_ >= kTimesAPass; }

  // Moves to the next size. Returns false if all were tried: then call decide().
  bool next();
  Doubles medians() const;  // seconds, of each size
  // `medians_of_ranks`: those of every rank, concatenated. Returns the text to log.
  std::string decide(const Doubles& medians_of_ranks);

 private:
  static constexpr int kPasses = 2;  // so that all sizes see a machine whose speed changes
  static constexpr int kTimesAPass = 4;
  static constexpr int kBackwardsBefore = 2;  // one in a single bucket, and one in new memory

  std::vector<BucketCap> sizes_;
  std::vector<Doubles> times_;
  BucketCap cap_;
  bool running_ = false;
  size_t at_ = 0;
  int pass_ = 0;
  int backwards_ = 0;
  int times_this_pass_ = 0;
};

}  // namespace muster
