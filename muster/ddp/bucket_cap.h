// The size of the buckets in which gradients are averaged: a number of MiB, PyTorch's default, or
// the best size found in the first steps.
#pragma once

#include <optional>

namespace muster {

class BucketCap {
 public:
  BucketCap() = default;                // PyTorch's: 25 MiB, first bucket 1
  BucketCap(double mib) : mib_(mib) {}  // NOLINT(google-explicit-constructor): it is a number
  // Tries a few sizes in the first steps, PyTorch's first. It keeps the one with the shortest
  // backwards on the slowest rank, the same on all ranks; another than PyTorch's must be better by
  // 2 %. Rank 0 logs the choice.
  static BucketCap automatic() {
    BucketCap cap;
    cap.automatic_ = true;
    return cap;
  }

  bool is_automatic() const { return automatic_; }
  const std::optional<double>& mib() const { return mib_; }
  // Whether it is a size that memory can have; 0 gives each parameter a bucket of its own.
  bool is_size() const { return !mib_ || (*mib_ >= 0 && *mib_ <= kMostMib); }

 private:
  static constexpr double kMostMib = 1e9;  // a thousand terabytes
  std::optional<double> mib_;
  bool automatic_ = false;
};

}  // namespace muster
