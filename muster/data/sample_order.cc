// Orders of an epoch. Each is a name, which ranks compare, and a function that makes the epoch's
// order from a seed and the epoch's number. Drawn orders hold all positions in a tensor or a
// vector; pseudo_shuffled computes each position when it is asked for.
#include "muster/data/sample_order.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/nextafter.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/data/generator.h"
#include "muster/data/mix.h"
#include "muster/data/permutation.h"

namespace muster {

namespace {

// PyTorch's samplers seed their generators so. The sum may wrap around, hence without a sign.
at::Generator generator_of(int64_t seed, int64_t epoch) {
  return at::detail::createCPUGenerator(static_cast<uint64_t>(seed) + epoch);
}

// The order keeps the tensor alive, and reads its memory directly.
EpochOrder in_order_of(const Tensor& samples) {
  return [samples, first = samples.const_data_ptr<int64_t>()](int64_t position) {
    return first[position];
  };
}

// An order in which each sample of the data set comes once.
SampleOrder order_of_all(const char* name,
                         int64_t dataset_size,
                         std::function<EpochOrder(int64_t seed, int64_t epoch)> epoch) {
  if (dataset_size < 1) {
    throw invalid_argument("sampler: expected a data set with at least 1 sample, got length ",
                           dataset_size,
                           "; check what was loaded");
  }
  return {.name = cat(name, "(", dataset_size, ")"),
          .dataset_size = dataset_size,
          .samples = dataset_size,
          .epoch = std::move(epoch)};
}

// Returns how many samples can be drawn at all. Throws for a weight that is no weight.
int64_t check_weights(const Doubles& weights) {
  int64_t possible = 0;
  for (const size_t i : indices_of(weights)) {
    if (!(weights[i] >= 0) || std::isinf(weights[i])) {
      throw invalid_argument(
          "sampler: expected weights of 0 or more, got ", weights[i], " for sample ", i);
    }
    possible += weights[i] > 0 ? 1 : 0;
  }
  // Behind an infinite sum every draw would be the same sample.
  if (std::isinf(sum_of(weights))) {
    throw invalid_argument("sampler: expected weights whose sum is finite, got an infinite one of ",
                           weights.size(),
                           " weights; divide them by the largest");
  }
  if (possible == 0) {
    throw invalid_argument("sampler: expected a weight above 0, got ",
                           weights.size(),
                           " weights, none of them above 0");
  }
  return possible;
}

constexpr int64_t kMostOfMultinomial = int64_t{1} << 24;  // at::multinomial refuses more weights

// Each draw is the first place where the running sum is above a number below the sum of all.
Tensor drawn_by_sum(const Tensor& weights, int64_t samples, const at::Generator& generator) {
  const Tensor sums = weights.cumsum(0);
  const Tensor drawn = at::rand({samples}, generator, weights.options()) * sums[-1];
  const Tensor below_all = drawn.minimum(at::nextafter(sums[-1], at::zeros({}, weights.options())));
  return at::searchsorted(sums, below_all, /*out_int32=*/false, /*right=*/true);
}

// The samples drawn are those whose weight over a draw of an exponential distribution is largest.
// Source: at::multinomial without replacement.
Tensor drawn_by_keys(const Tensor& weights, int64_t samples, const at::Generator& generator) {
  const Tensor keys = weights / at::empty_like(weights).exponential_(1, generator);
  return std::get<1>(keys.topk(samples));
}

// at::multinomial gives PyTorch's draws, but takes only so many weights.
Tensor drawn(const Tensor& weights,
             int64_t samples,
             bool replacement,
             const at::Generator& generator) {
  if (weights.numel() <= kMostOfMultinomial)
    return at::multinomial(weights, samples, replacement, generator);
  return replacement ? drawn_by_sum(weights, samples, generator)
                     : drawn_by_keys(weights, samples, generator);
}

// The sort is stable, so every rank gets one order out of equal lengths.
void sort_by_length(std::span<int64_t> samples, const Int64s& lengths) {
  std::ranges::stable_sort(samples, [&](int64_t a, int64_t b) { return lengths[a] < lengths[b]; });
}

// Whole groups alone change places, so that batches stay groups; a shorter last one stays where it
// is.
void shuffle_groups(std::span<int64_t> samples, int64_t group, Generator& rng) {
  for (int64_t last = std::ssize(samples) / group - 1; last > 0; --last) {
    const auto one = samples.begin() + last * group;
    const auto other = samples.begin() + rng.integer(last + 1) * group;
    if (one != other)
      std::swap_ranges(one, one + group, other);
  }
}

}  // namespace

// An order may cost time and memory for the whole data set, so an epoch that is never read does not
// make it. Workers that ask at once wait for the first of them.
EpochOrder order_when_needed(const SampleOrder& order, int64_t seed, int64_t epoch) {
  // Copies of the order share one result, which the first of them computes.
  struct Needed {
    std::once_flag once;
    EpochOrder order;
  };
  return [needed = std::make_shared<Needed>(), make = order.epoch, seed, epoch](int64_t position) {
    std::call_once(needed->once, [&] { needed->order = make(seed, epoch); });
    return needed->order(position);
  };
}

SampleOrder in_order(int64_t dataset_size) {
  SampleOrder order =
      order_of_all("in_order", dataset_size, [](int64_t, int64_t) { return std::identity(); });
  order.changes = false;
  return order;
}

SampleOrder shuffled(int64_t dataset_size) {
  return order_of_all("shuffled", dataset_size, [dataset_size](int64_t seed, int64_t epoch) {
    return in_order_of(at::randperm(dataset_size, generator_of(seed, epoch), kLong));
  });
}

SampleOrder pseudo_shuffled(int64_t dataset_size) {
  return order_of_all("pseudo_shuffled", dataset_size, [dataset_size](int64_t seed, int64_t epoch) {
    const Permutation permutation(dataset_size, mixed(seed, epoch));
    return [permutation](int64_t position) {
      return permutation.at(position);
    };
  });
}

// The fingerprint stands for the weights in the name, by which ranks compare their orders.
SampleOrder weighted(const Doubles& weights, int64_t samples, bool replacement) {
  const int64_t possible = check_weights(weights);
  if (samples < 1 || (!replacement && samples > possible)) {
    throw invalid_argument(
        "sampler: expected 1 ",
        replacement ? "sample or more" : cat("to ", possible, " samples"),
        " of an epoch",
        replacement ? "" : ", as many as have a weight above 0, without replacement",
        ", got ",
        samples);
  }
  const Tensor tensor = at::tensor(weights, kDouble);
  return {.name = cat("weighted(",
                      fingerprint(weights),
                      ", ",
                      samples,
                      replacement ? "" : ", without replacement",
                      ")"),
          .dataset_size = std::ssize(weights),
          .samples = samples,
          .epoch =
              [tensor, samples, replacement](int64_t seed, int64_t epoch) {
                return in_order_of(drawn(tensor, samples, replacement, generator_of(seed, epoch)));
              },
          .repeats = replacement};
}

// Labels may lie on a GPU; counting and drawing happen on the CPU.
SampleOrder class_balanced(const Tensor& labels, int64_t samples) {
  if (!labels.defined() || labels.dim() != 1 || labels.scalar_type() != kLong ||
      labels.size(0) == 0 || labels.min().item<int64_t>() < 0) {
    throw invalid_argument(
        "sampler: expected labels of shape [N], int64, 0 or more, one for each sample");
  }
  const Tensor mine = labels.cpu();
  const Tensor counts = at::bincount(mine).to(kDouble);
  const Tensor weights = counts.reciprocal().index_select(0, mine).contiguous();
  // Every class has the same sum of weights: 1.
  const double* first = weights.const_data_ptr<double>();
  return weighted({first, first + weights.numel()}, samples == 0 ? mine.size(0) : samples);
}

// Sorting within a window keeps the order's randomness across windows. Shuffled groups keep
// training from always seeing short samples first.
SampleOrder bucketed(const SampleOrder& order,
                     const Int64s& lengths,
                     int64_t group,
                     int64_t window) {
  if (std::ssize(lengths) != order.dataset_size || group < 1 || window < group ||
      window % group != 0) {
    throw invalid_argument("sampler: expected ",
                           order.dataset_size,
                           " lengths, groups of at least 1 and a window of at least a group, got ",
                           lengths.size(),
                           " lengths, groups of ",
                           group,
                           ", a window of ",
                           window);
  }
  SampleOrder sorted = order;
  sorted.name =
      cat("bucketed(", order.name, ", ", fingerprint(lengths), ", ", group, ", ", window, ")");
  sorted.changes = true;
  sorted.epoch = [order, group, window, shared = std::make_shared<const Int64s>(lengths)](
                     int64_t seed, int64_t epoch) -> EpochOrder {
    const EpochOrder before = order.epoch(seed, epoch);
    auto samples = std::make_shared<Int64s>(order.samples);
    for (const int64_t i : indices_below(order.samples))
      (*samples)[i] = before(i);
    // No sample has the index -1, so these draws are no sample's.
    Generator rng(seed, epoch, /*index=*/-1);
    for (int64_t begin = 0; begin < order.samples; begin += window) {
      const int64_t end = std::min(order.samples, begin + window);
      const std::span in_window(samples->begin() + begin, samples->begin() + end);
      sort_by_length(in_window, *shared);
      shuffle_groups(in_window, group, rng);
    }
    return [samples](int64_t position) {
      return (*samples)[position];
    };
  };
  return sorted;
}

}  // namespace muster
