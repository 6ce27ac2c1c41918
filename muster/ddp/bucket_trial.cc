// All sizes are tried one after the other, and then once more. What counts is the median of a
// size's backwards on the slowest rank.
#include "muster/ddp/bucket_trial.h"

#include <algorithm>
#include <cmath>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr size_t kMiBOfBucket = size_t{1024} * 1024;
constexpr double kBetterBy = 0.98;  // than PyTorch's, or that stays

double middle_of(Doubles values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::string text_of(const BucketCap& cap) {
  return cap.mib() ? cat(*cap.mib(), " MiB") : "25 MiB (PyTorch's)";
}

std::string ms_text(double seconds) {
  return cat(std::round(seconds * 1e4) / 10, " ms");
}

}  // namespace

// PyTorch's size is tried first. Sizes that all of the model fits into are not tried.
BucketTrial::BucketTrial(const BucketCap& cap, size_t model_bytes) : cap_(cap) {
  if (!cap.is_automatic())
    return;
  sizes_ = {BucketCap()};
  for (const int mib : {10, 4, 1}) {
    if (model_bytes > mib * kMiBOfBucket)
      sizes_.emplace_back(mib);
  }
  cap_ = sizes_[0];
  running_ = sizes_.size() > 1;
  times_.resize(sizes_.size());
}

// The first backwards after new buckets are not counted: one is in a single bucket, one in new
// memory.
void BucketTrial::count(double seconds) {
  if (!running_ || ++backwards_ <= kBackwardsBefore)
    return;
  times_[at_].push_back(seconds);
  ++times_this_pass_;
}

// A pass goes through all sizes; after the last pass there is none left.
bool BucketTrial::next() {
  times_this_pass_ = 0;
  at_ = (at_ + 1) % sizes_.size();
  if (at_ == 0 && ++pass_ == kPasses)
    return running_ = false;
  cap_ = sizes_[at_];
  return true;
}

Doubles BucketTrial::medians() const {
  return mapped(times_, middle_of);
}

// All ranks have gathered the same numbers, and so decide alike.
std::string BucketTrial::decide(const Doubles& medians_of_ranks) {
  Doubles slowest(sizes_.size(), 0);
  for (const size_t i : indices_of(medians_of_ranks)) {
    double& time = slowest[i % sizes_.size()];
    time = std::max(time, medians_of_ranks[i]);
  }
  size_t best = std::ranges::min_element(slowest) - slowest.begin();
  if (slowest[best] > kBetterBy * slowest[0])
    best = 0;
  cap_ = sizes_[best];
  Strings tried;
  for (const size_t i : indices_of(sizes_))
    tried.push_back(cat(text_of(sizes_[i]), " ", ms_text(slowest[i])));
  return cat("buckets of ",
             text_of(cap_),
             " from now on, by the backward times of ",
             kPasses * kTimesAPass,
             " steps with each size: ",
             join(tried, ", "));
}

}  // namespace muster
