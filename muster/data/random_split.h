// Divides a dataset: into parts, as torch.utils.data.random_split, and into folds for
// cross-validation; at random, or so that every part has the same mixture of classes.
//
//   const auto parts = muster::random_split(data, {0.8, 0.2}, {.seed = 1});
//   for (const auto& [train, test] : muster::k_folds(data, 5, {.labels = data.labels()})) …
//
// Every rank gets the same parts, since all that decides them are the arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/never.h"
#include "muster/base/tensors.h"
#include "muster/data/subset.h"

namespace muster {

// The parts' samples ({800, 200}), or their fractions, which add to 1 ({0.8, 0.2}).
class SplitLengths {
 public:
  template <std::integral... Counts>
    requires(sizeof...(Counts) > 0)
  SplitLengths(Counts... counts) : counts_{static_cast<int64_t>(counts)...} {}
  template <std::floating_point... Fractions>
    requires(sizeof...(Fractions) > 0)
  SplitLengths(Fractions... fractions) : fractions_{static_cast<double>(fractions)...} {}
  SplitLengths(std::vector<int64_t> counts) : counts_(std::move(counts)) {}
  SplitLengths(std::vector<double> fractions) : fractions_(std::move(fractions)) {}

  // The samples of each part. Fractions are rounded down, and what is left goes to the parts in
  // turn, as in PyTorch. Throws: invalid_argument if they do not add to 1, or to `size`, or if a
  // part has no sample.
  std::vector<int64_t> of(int64_t size) const;

 private:
  Int64s counts_;
  Doubles fractions_;
};

struct SplitOptions {
  int64_t seed = 0;
  // The class of each sample, [N] int64: every part gets its fraction of each class, give or take
  // a sample or two. Undefined: parts are random. A class with fewer samples than there are parts
  // is warned of, as it is not in all of them.
  at::Tensor labels{};
};

struct FoldOptions {
  bool shuffle = true;  // false: samples are taken in the order of the dataset
  int64_t seed = 0;
  at::Tensor labels{};  // as SplitOptions
};

namespace datasets {

Tensors split_indices(int64_t size, const SplitLengths& lengths, const SplitOptions& options);
struct FoldIndices {
  Tensor train;
  Tensor test;
};
std::vector<FoldIndices> fold_indices(int64_t size, int64_t folds, const FoldOptions& options);

}  // namespace datasets

// `Given` is a dataset, or a std::shared_ptr to one.
// Throws: as SplitLengths::of; invalid_argument for labels that are not one int64 a sample.
// Source: torch.utils.data.random_split with a generator of that seed, index for index (without
// labels).
template <GivesDataset Given>
std::vector<Subset<DatasetOf<Given>>> random_split(Given dataset,
                                                   const SplitLengths& lengths,
                                                   const SplitOptions& options = {}) {
  const auto shared = shared_dataset(std::move(dataset));
  return mapped(
      datasets::split_indices(shared->size(), lengths, options),
      [&](const at::Tensor& indices) { return Subset<DatasetOf<Given>>(shared, indices); });
}

// What is no dataset: the text is the compiler's whole answer.
template <class Given>
  requires(!GivesDataset<Given>)
void random_split(const Given& /*dataset*/,
                  const SplitLengths& /*lengths*/,
                  const SplitOptions& /*options*/ = {}) {
  static_assert(kNever<Given>,
                "random_split takes a dataset (IsDataset), by value or as a std::shared_ptr");
}
template <class Given>
  requires(!GivesDataset<Given>)
void k_folds(const Given& /*dataset*/, int64_t /*folds*/, const FoldOptions& /*options*/ = {}) {
  static_assert(kNever<Given>,
                "k_folds takes a dataset (IsDataset), by value or as a std::shared_ptr");
}

template <IsDataset D>
struct Fold {
  Subset<D> train;
  Subset<D> test;
};

// Each sample is in the test part of one fold, and in the training parts of all others. Folds
// differ by at most one sample.
// Throws: invalid_argument for fewer than 2 folds, more folds than samples, or labels that are not
// one int64 a sample.
template <GivesDataset Given>
std::vector<Fold<DatasetOf<Given>>> k_folds(Given dataset,
                                            int64_t folds,
                                            const FoldOptions& options = {}) {
  const auto shared = shared_dataset(std::move(dataset));
  using OneFold = Fold<DatasetOf<Given>>;
  std::vector<OneFold> made;
  for (const auto& [train, test] : datasets::fold_indices(shared->size(), folds, options))
    made.push_back(OneFold{{shared, train}, {shared, test}});
  return made;
}

}  // namespace muster
