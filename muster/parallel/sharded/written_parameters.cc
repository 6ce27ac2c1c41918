// A parameter's version tells that it was written to. A few of its values tell whether they are
// others now: a program may put values in for a while, on one rank alone, and take them out again.
#include "muster/parallel/sharded/written_parameters.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/replica_check.h"
#include "muster/ddp/value_sample.h"

namespace muster {

namespace {

constexpr int64_t kSampledValues = 64;  // of a parameter, evenly spaced

// A perturbation that is subtracted again leaves roundings.
bool has_changed(const Tensor& now, const Tensor& before) {
  if (before.numel() == 0)
    return false;
  const double relative = roundings_of(before.scalar_type());
  const double absolute = relative * before.abs().max().item<double>();
  if (!std::isfinite(absolute))
    return !now.equal(before);
  return !at::allclose(now, before, relative, absolute, /*equal_nan=*/true);
}

}  // namespace

WrittenParameters::WrittenParameters(Tensors parameters, const FlatLayout& layout, Tensor flat)
    : parameters_(std::move(parameters)), flat_(std::move(flat)) {
  Int64s places;
  first_places_.push_back(0);
  for (const size_t i : indices_of(parameters_)) {
    const int64_t count = layout.counts[i];
    const int64_t sampled = std::min(count, kSampledValues);
    for (int64_t k = 0; k < sampled; ++k)
      places.push_back(layout.offsets[i] + count * k / sampled);
    first_places_.push_back(std::ssize(places));
  }
  places_ = at::tensor(places, kLong).to(flat_.device());
  note();
}

Tensor WrittenParameters::sample() const {
  return flat_.index_select(0, places_);
}

void WrittenParameters::note() {
  noted_ = sample();
  versions_ = mapped(parameters_, &Tensor::_version);
}

Int64s WrittenParameters::hashes_of_changed() const {
  const auto written = filtered_indices<size_t>(
      parameters_.size(), [&](size_t i) { return parameters_[i]._version() != versions_[i]; });
  if (written.empty())
    return {};
  const Tensor now = sample().cpu(), noted = noted_.cpu();
  Int64s hashes;
  for (const size_t i : written) {
    const auto mine = [&](const Tensor& values) {
      return values.slice(0, first_places_[i], first_places_[i + 1]);
    };
    if (has_changed(mine(now), mine(noted)))
      hashes.push_back(hash_of_bits(mine(now)));
  }
  return hashes;
}

}  // namespace muster
