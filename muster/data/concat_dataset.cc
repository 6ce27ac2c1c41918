// The parts of concat_dataset.h that know no type of example: which dataset has a sample, and how
// the rows of a batch are put together.
#include "muster/data/concat_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>

#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"

namespace muster::datasets {

namespace {

constexpr Refusal refuse_joined{"concat data set"};

// "Float [3, 32] on cpu" of one sample.
std::string kind_of(const Tensor& rows) {
  return cat(toString(rows.scalar_type()),
             " [",
             join(rows.sizes().slice(1), ", "),
             "] on ",
             rows.device().str());
}

}  // namespace

JoinedSizes::JoinedSizes(Int64s sizes) : sizes_(std::move(sizes)) {
  if (sizes_.empty())
    refuse_joined("at least 1 data set", "none", "see what was found");
  int64_t end = 0;
  for (const int64_t size : sizes_)
    ends_.push_back(end += size);
}

// The first that ends behind the sample; one without samples ends where it begins.
JoinedSizes::Place JoinedSizes::place_of(int64_t sample) const {
  if (sample < 0 || sample >= total())
    refuse_joined(
        cat("a sample from 0 to ", total() - 1), cat(sample), "ask for one that there is");
  const size_t part = std::ranges::upper_bound(ends_, sample) - ends_.begin();
  return {.part = part, .index = sample - (ends_[part] - sizes_[part])};
}

std::vector<RowsOfPart> rows_by_part(const JoinedSizes& sizes, const Tensor& rows) {
  const Tensor samples = rows.cpu().contiguous();
  const int64_t* const numbers = samples.const_data_ptr<int64_t>();
  const size_t parts = sizes.sizes().size();
  std::vector<Int64s> there(parts), places(parts);
  for (const int64_t i : indices_below(samples.numel())) {
    const auto place = sizes.place_of(numbers[i]);
    there[place.part].push_back(place.index);
    places[place.part].push_back(i);
  }
  std::vector<RowsOfPart> by_part;
  for (size_t part = 0; part < parts; ++part)
    if (!there[part].empty())
      by_part.push_back({.part = part,
                         .rows = at::tensor(there[part], kLong),
                         .places = at::tensor(places[part], kLong)});
  return by_part;
}

Tensor first_row() {
  return at::zeros({1}, kLong);
}

void put_rows(const Tensor& from, const Tensor& places, int64_t size, bool pinned, Tensor* to) {
  if (!to->defined()) {
    auto shape = from.sizes().vec();
    shape[0] = size;
    *to = at::empty(shape, from.options().pinned_memory(pinned && from.is_cpu()));
  }
  to->index_copy_(0, places.to(to->device()), from);
}

void check_alike(const Tensors& of_first, const Tensors& of_part, size_t part) {
  const std::string next = "join data sets of one kind";
  if (of_first.size() != of_part.size())
    refuse_joined(cat("samples of ", of_first.size(), " tensors, as in the first data set"),
                  cat(of_part.size(), " in data set ", part),
                  next);
  for (const size_t i : indices_of(of_part)) {
    const auto expected = kind_of(of_first[i]);
    const auto got = kind_of(of_part[i]);
    if (got != expected)
      refuse_joined(cat("samples with ", expected, ", as in the first data set"),
                    cat(got, " in data set ", part, " (tensor ", i, ")"),
                    next);
  }
}

}  // namespace muster::datasets
