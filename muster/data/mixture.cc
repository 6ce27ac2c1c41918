// A position of an epoch is first permuted to a slot; slots belong to the data sets, in proportion
// to their weights. The slot's number, counted over all epochs, says how often its data set has
// been gone through, and where it is in the order of this time. So every position is computed by
// itself, and a resumed run needs nothing but the position.
#include "muster/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/data/as_double.h"
#include "muster/data/mix.h"
#include "muster/data/permutation.h"

namespace muster {

namespace {

struct Source {            // one data set
  int64_t begin = 0;       // of its samples, among all
  int64_t size = 0;        // samples
  int64_t first_slot = 0;  // in an epoch
  int64_t slots = 0;       // of an epoch
};

using Sources = std::vector<Source>;

constexpr Refusal refuse_mixture{"mixture", "pass one weight a data set"};

void check_mixture(const Int64s& sizes, const Doubles& weights, int64_t samples) {
  if (sizes.empty() || sizes.size() != weights.size())
    refuse_mixture("one weight for each data set",
                   cat(weights.size(), " weights for ", sizes.size(), " data sets"));
  if (samples < 0)
    refuse_mixture("an epoch of 0 samples (as many as there are) or more", cat(samples));
  for (const size_t i : indices_of(sizes)) {
    if (!(weights[i] >= 0) || std::isinf(weights[i]))
      refuse_mixture("weights of 0 or more", cat(weights[i], " for data set ", i));
    if (sizes[i] < 0 || (sizes[i] == 0 && weights[i] > 0))
      refuse_mixture("a data set with samples where the weight is above 0",
                     cat("a size of ", sizes[i], " for data set ", i));
  }
  if (std::isinf(sum_of(weights)))
    refuse_mixture("weights whose sum is finite", cat("[", join(weights, ", "), "]"));
  if (all_of(weights, [](double weight) { return weight == 0; }))
    refuse_mixture("a weight above 0", cat("[", join(weights, ", "), "]"));
}

// Returns the slots of each data set in an epoch, by largest remainder.
Int64s slots_of(const Doubles& weights, int64_t samples) {
  const double sum = sum_of(weights);
  Int64s slots;
  std::vector<std::pair<double, size_t>> by_remainder;
  for (const size_t i : indices_of(weights)) {
    const double exact = weights[i] / sum * as_double(samples);
    slots.push_back(std::floor(exact));
    if (weights[i] > 0)
      by_remainder.emplace_back(as_double(slots.back()) - exact, i);
  }
  std::ranges::sort(by_remainder);
  int64_t left = samples - sum_of(slots);
  for (size_t i = 0; left > 0; ++i, --left)
    ++slots[by_remainder[i % by_remainder.size()].second];
  return slots;
}

Sources sources_of(const Int64s& sizes, const Int64s& slots) {
  Sources sources;
  Source next;
  for (const size_t i : indices_of(sizes)) {
    next.size = sizes[i];
    next.slots = slots[i];
    sources.push_back(next);
    next.begin += next.size;
    next.first_slot += next.slots;
  }
  return sources;
}

// The order of one epoch: the sample at each position.
class MixedEpoch {
 public:
  MixedEpoch(std::shared_ptr<const Sources> sources, int64_t samples, int64_t seed, int64_t epoch)
      : sources_(std::move(sources)),
        places_(samples, mixed(seed, epoch)),
        seed_(seed),
        epoch_(epoch) {}

  int64_t operator()(int64_t position) const {
    const int64_t slot = places_.at(position);
    const auto behind = std::ranges::upper_bound(*sources_, slot, {}, &Source::first_slot);
    const int64_t index = behind - sources_->begin() - 1;
    const Source& source = (*sources_)[index];
    const int64_t draw = epoch_ * source.slots + slot - source.first_slot;
    const int64_t pass = draw / source.size;
    const Permutation order(source.size, mixed(mixed(seed_, index), pass));
    return source.begin + order.at(draw % source.size);
  }

 private:
  std::shared_ptr<const Sources> sources_;
  Permutation places_;
  int64_t seed_;
  int64_t epoch_;
};

}  // namespace

SampleOrder mixture(const Int64s& sizes, const Doubles& weights, int64_t samples) {
  check_mixture(sizes, weights, samples);
  const int64_t all = sum_of(sizes);
  const int64_t of_epoch = samples == 0 ? all : samples;
  const auto sources =
      std::make_shared<const Sources>(sources_of(sizes, slots_of(weights, of_epoch)));
  return {
      .name = cat("mixture(", fingerprint(sizes), ", ", fingerprint(weights), ", ", of_epoch, ")"),
      .dataset_size = all,
      .samples = of_epoch,
      .epoch = [sources, of_epoch](
                   int64_t seed,
                   int64_t epoch) { return MixedEpoch(sources, of_epoch, seed, epoch); },
      .repeats = true};
}

}  // namespace muster
