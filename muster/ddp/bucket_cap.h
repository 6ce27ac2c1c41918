// How large the buckets are in which gradients are averaged: a number of MiB, PyTorch's default, or what
// proves best in the first steps.
#pragma once

#include <optional>

namespace muster {

class BucketCap {
 public:
  BucketCap() = default;                // PyTorch's: 25 MiB, the first bucket 1
  BucketCap(double mib) : mib_(mib) {}  // NOLINT(google-explicit-constructor): it is a number
  // A few sizes are tried in the first steps, PyTorch's first, and the one whose backwards are the shortest
  // on the slowest rank is kept, the same on all ranks; PyTorch's unless another is better by a fiftieth.
  // Rank 0 says which.
  static BucketCap automatic() {
    BucketCap cap;
    cap.automatic_ = true;
    return cap;
  }

  bool is_automatic() const { return automatic_; }
  const std::optional<double>& mib() const { return mib_; }

 private:
  std::optional<double> mib_;
  bool automatic_ = false;
};

}  // namespace muster
