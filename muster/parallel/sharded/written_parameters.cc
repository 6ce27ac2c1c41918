// A parameter's version tells that it was written to. A few of its values tell whether they are
// others now: a program may swap in averages for a while, on one rank alone.
#include "muster/parallel/sharded/written_parameters.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/replica_check.h"

namespace muster {

namespace {

constexpr int64_t kSampledValues = 64;  // of a parameter, evenly spaced

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

bool WrittenParameters::is_written(size_t parameter) const {
  return parameters_[parameter]._version() != versions_[parameter];
}

Int64s WrittenParameters::hashes_of_changed(bool by_any) const {
  const bool may_be_any = by_any && flat_.is_cpu();
  const auto written = filtered_indices<size_t>(
      parameters_.size(), [&](size_t i) { return may_be_any || is_written(i); });
  if (written.empty())
    return {};
  const Tensor now = sample();
  Int64s hashes;
  for (const size_t i : written) {
    const auto mine = [&](const Tensor& values) {
      return values.slice(0, first_places_[i], first_places_[i + 1]);
    };
    if (!mine(now).equal(mine(noted_)))
      hashes.push_back(hash_of_bits(parameters_[i]));
  }
  return hashes;
}

}  // namespace muster
