#include "muster/ddp/bucket_trial.h"

#include <algorithm>
#include <cmath>

#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr double kMiBOfBucket = 1024 * 1024;
constexpr double kBetterBy = 0.98;  // than PyTorch's, or that stays

double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string text_of(const BucketCap& cap) {
  return cap.mib() ? cat(*cap.mib(), " MiB") : "25 MiB (PyTorch's)";
}

std::string ms_text(double seconds) {
  return cat(std::round(seconds * 1e4) / 10, " ms");
}

}  // namespace

BucketTrial::BucketTrial(const BucketCap& cap, size_t model_bytes) : cap_(cap) {
  if (!cap.is_automatic())
    return;
  sizes_ = {BucketCap()};
  for (const double mib : {10.0, 4.0, 1.0})
    if (static_cast<double>(model_bytes) > mib * kMiBOfBucket)
      sizes_.emplace_back(mib);
  cap_ = sizes_[0];
  running_ = sizes_.size() > 1;
  times_.resize(sizes_.size());
}

void BucketTrial::count(double seconds) {
  if (!running_ || ++backwards_ <= kBackwardsBefore)
    return;
  times_[at_].push_back(seconds);
  ++times_this_pass_;
}

bool BucketTrial::next() {
  times_this_pass_ = 0;
  at_ = (at_ + 1) % sizes_.size();
  if (at_ == 0 && ++pass_ == kPasses)
    return running_ = false;
  cap_ = sizes_[at_];
  return true;
}

std::vector<double> BucketTrial::medians() const {
  std::vector<double> medians;
  for (const auto& times : times_)
    medians.push_back(middle_of(times));
  return medians;
}

std::string BucketTrial::decide(const std::vector<double>& medians_of_ranks) {
  std::vector<double> slowest(sizes_.size(), 0);
  for (size_t i = 0; i < medians_of_ranks.size(); ++i)
    slowest[i % sizes_.size()] = std::max(slowest[i % sizes_.size()], medians_of_ranks[i]);
  auto best =
      static_cast<size_t>(std::min_element(slowest.begin(), slowest.end()) - slowest.begin());
  if (slowest[best] > kBetterBy * slowest[0])
    best = 0;
  cap_ = sizes_[best];
  std::vector<std::string> tried;
  for (size_t i = 0; i < sizes_.size(); ++i)
    tried.push_back(cat(text_of(sizes_[i]), " ", ms_text(slowest[i])));
  return cat("buckets of ",
             text_of(cap_),
             " from now on, by the backward times of ",
             kPasses * kTimesAPass,
             " steps with each size: ",
             join(tried, ", "));
}

}  // namespace muster
