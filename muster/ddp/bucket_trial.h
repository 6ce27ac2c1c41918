// Which bucket size (bucket_cap.h) makes the shortest backwards: goes through a few, twice, and counts. The
// reducer (gradient_reducer.cc) makes its buckets anew between them, and lets the ranks agree. Knows nothing
// of either.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "muster/ddp/bucket_cap.h"

namespace muster {

class BucketTrial {
 public:
  // `model_bytes` of gradients: larger buckets than that are not tried. Of a cap that is not automatic there
  // is nothing to try.
  BucketTrial(const BucketCap& cap, size_t model_bytes);

  bool running() const { return running_; }
  const BucketCap& cap() const { return cap_; }  // that the buckets are to have now

  void begin_buckets() { backwards_ = 0; }  // they are new, for whatever reason
  void count(double seconds);               // a backward that was reduced has ended
  bool has_enough() const { return running_ && times_this_pass_ >= kTimesAPass; }

  // On to the next size. False when all were tried: then decide().
  bool next();
  std::vector<double> medians() const;  // seconds, of each size
  // `medians_of_ranks`: of every rank, one after the other. Returns what is to be said of it.
  std::string decide(const std::vector<double>& medians_of_ranks);

 private:
  static constexpr int kPasses = 2;  // so that a machine that changes meets all sizes
  static constexpr int kTimesAPass = 4;
  static constexpr int kBackwardsBefore = 2;  // one in a single bucket, and one in new memory

  std::vector<BucketCap> sizes_;
  std::vector<std::vector<double>> times_;
  BucketCap cap_;
  bool running_ = false;
  size_t at_ = 0;
  int pass_ = 0;
  int backwards_ = 0;
  int times_this_pass_ = 0;
};

}  // namespace muster
