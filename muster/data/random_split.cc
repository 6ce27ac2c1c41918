// Says which samples are in which part. A split by classes goes through the samples class by class
// and gives each to the part that is furthest behind its length. So every run of samples, and with
// it every class, is divided in proportion.
#include "muster/data/random_split.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/data/as_double.h"

namespace muster {

namespace {

constexpr Refusal refuse_split{"split"};

Int64s counts_of_fractions(const Doubles& fractions, int64_t size) {
  const double sum = sum_of(fractions);
  constexpr double kTolerance = 1e-6;  // for fractions that were rounded
  const bool is_right =
      all_of(fractions, [](double part) { return part >= 0; }) && std::abs(sum - 1) <= kTolerance;
  if (!is_right)
    refuse_split("fractions of 0 or more that add to 1",
                 cat("[", join(fractions, ", "), "], which add to ", sum),
                 "give the last part what is left");
  Int64s counts = mapped(fractions, [&](double fraction) -> int64_t {
    return std::floor(as_double(size) * fraction);
  });
  int64_t left = size - sum_of(counts);
  for (size_t i = 0; left > 0; ++i, --left)
    ++counts[i % counts.size()];
  counts.back() += left;  // below 0 where fractions add to a little more than 1
  return counts;
}

// All samples, in a random order or in the data set's.
Tensor samples_in_order(int64_t size, bool shuffle, int64_t seed) {
  if (!shuffle)
    return at::arange(size, kLong);
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randperm(size, generator, kLong);
}

// Returns the labels on the CPU.
Tensor checked_labels(const Tensor& labels, int64_t size, int64_t parts) {
  const bool is_right = labels.scalar_type() == kLong && labels.sizes() == at::IntArrayRef(size);
  if (!is_right)
    refuse_split(cat("labels of shape [", size, "], int64, one for each sample"),
                 tensor_text(labels),
                 "pass the labels of this data set, or leave them out");
  const Tensor on_cpu = labels.cpu();
  const auto [classes, unused, counts] =
      at::_unique2(on_cpu, /*sorted=*/true, /*return_inverse=*/false, /*return_counts=*/true);
  const int64_t least = counts.min().item<int64_t>();
  if (least < parts) {
    const int64_t rare = classes[counts.argmin().item<int64_t>()].item<int64_t>();
    log_warning("split: class ",
                rare,
                " has ",
                plural(least, "sample"),
                " for ",
                parts,
                " parts, so not every part has one");
  }
  return on_cpu;
}

// Sorts the samples by class; within a class their order stays.
Tensor class_by_class(const Tensor& samples, const Tensor& labels) {
  constexpr std::optional<bool> kStable = true;
  const Tensor order = std::get<1>(labels.index_select(0, samples).sort(kStable, /*dim=*/0));
  return samples.index_select(0, order);
}

// Deals the samples out to parts of these lengths, so that all parts grow at an even rate.
Tensors dealt_out(const Tensor& samples, const Int64s& lengths) {
  const double size = as_double(samples.numel());
  const int64_t* const numbers = samples.const_data_ptr<int64_t>();
  std::vector<Int64s> parts(lengths.size());
  for (const int64_t i : indices_below(samples.numel())) {
    size_t furthest_behind = 0;
    double most = -size;
    for (const size_t part : indices_of(lengths)) {
      const double due = as_double(lengths[part]) * as_double(i + 1) / size;
      const double behind = due - as_double(std::ssize(parts[part]));
      const bool is_full = std::ssize(parts[part]) == lengths[part];
      if (!is_full && behind > most) {
        furthest_behind = part;
        most = behind;
      }
    }
    parts[furthest_behind].push_back(numbers[i]);
  }
  return mapped(parts, [&](const auto& part) { return at::tensor(part, kLong); });
}

}  // namespace

Int64s SplitLengths::of(int64_t size) const {
  const auto counts = counts_.empty() ? counts_of_fractions(fractions_, size) : counts_;
  const int64_t sum = sum_of(counts);
  const auto shown = cat("[", join(counts, ", "), "]");
  if (any_of(counts, [](int64_t count) { return count < 1; }))
    refuse_split(cat("parts with at least 1 of ", size, " samples"),
                 cat("parts of ", shown),
                 "make fewer or other parts");
  if (sum != size)
    refuse_split(cat("lengths that add to the ", size, " samples of the data set"),
                 cat(shown, ", which add to ", sum),
                 "pass fractions, or make the last part what is left");
  return counts;
}

Tensors datasets::split_indices(int64_t size,
                                const SplitLengths& lengths,
                                const SplitOptions& options) {
  const auto counts = lengths.of(size);
  const Tensor samples = samples_in_order(size, /*shuffle=*/true, options.seed);
  if (!options.labels.defined())
    return samples.split_with_sizes(counts);
  const Tensor labels = checked_labels(options.labels, size, std::ssize(counts));
  auto parts = dealt_out(class_by_class(samples, labels), counts);
  // A loader that takes a part in its order is to see no classes one after the other.
  for (Tensor& part : parts)
    part = part.index_select(0, samples_in_order(part.numel(), /*shuffle=*/true, options.seed));
  return parts;
}

// Test parts are in the data set's order, and so are training parts.
std::vector<datasets::FoldIndices> datasets::fold_indices(int64_t size,
                                                          int64_t folds,
                                                          const FoldOptions& options) {
  if (folds < 2 || folds > size)
    refuse_split(cat("2 to ", size, " folds of ", size, " samples"),
                 cat(folds),
                 "pass another number of folds");
  Int64s lengths = mapped_indices(
      folds, [&](int64_t fold) { return size / folds + (fold < size % folds ? 1 : 0); });
  Tensor samples = samples_in_order(size, options.shuffle, options.seed);
  Tensors tests;
  if (options.labels.defined()) {
    samples = class_by_class(samples, checked_labels(options.labels, size, folds));
    tests = dealt_out(samples, lengths);
  } else {
    tests = samples.split_with_sizes(lengths);
  }
  std::vector<FoldIndices> made;
  for (const int64_t fold : indices_below(folds)) {
    Tensors others = tests;
    others.erase(others.begin() + fold);
    made.push_back(
        {.train = std::get<0>(at::cat(others).sort()), .test = std::get<0>(tests[fold].sort())});
  }
  return made;
}

}  // namespace muster
