// Some samples of a dataset, by their indices, as torch.utils.data.Subset.
//
//   const muster::Subset few(photos, {0, 7, 12});
//   const muster::Subset ones(digits, (digits.labels() == 1).nonzero().squeeze(1));
//
// The dataset is shared: a subset holds its indices alone. What the dataset gives by whole batches
// (TensorDataset) a subset gives so too.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/never.h"
#include "muster/base/tensors.h"
#include "muster/data/dataset.h"

namespace muster {

namespace datasets {

// The indices of a subset, 8 bytes each; copies share them.
class SubsetIndices {
 public:
  // Throws: invalid_argument for indices that are not int64 [M], or not in a dataset of `size`.
  SubsetIndices(const Tensor& indices, int64_t size);
  SubsetIndices(const Int64s& indices, int64_t size);

  const Tensor& all() const { return indices_; }
  int64_t size() const { return indices_.size(0); }
  // Throws: invalid_argument for a place that there is not.
  int64_t at(int64_t place) const;
  // A hash of them.
  uint64_t identity() const { return identity_; }

 private:
  Tensor indices_;
  uint64_t identity_ = 0;
};

// A hash of both, in their order.
uint64_t joined_identity(uint64_t of_indices, uint64_t of_dataset);

}  // namespace datasets

template <class D>
class Subset {
 public:
  using Example = typename D::Example;

  // `Given` is D, or a std::shared_ptr to one. Indices may repeat.
  // Shapes: indices [M] int64, on any device.
  // Throws: invalid_argument for an index that the dataset does not have.
  template <class Given>
    requires std::same_as<DatasetOf<Given>, D>
  Subset(Given dataset, const std::vector<int64_t>& indices)
      : dataset_(shared_dataset(std::move(dataset))), indices_(indices, dataset_->size()) {}
  template <class Given, std::same_as<at::Tensor> Indices>
    requires std::same_as<DatasetOf<Given>, D>
  Subset(Given dataset, const Indices& indices)
      : dataset_(shared_dataset(std::move(dataset))), indices_(indices, dataset_->size()) {}

  int64_t size() const { return indices_.size(); }
  // `rng` depends on the index in this subset.
  Example get(int64_t index, Generator& rng) const
    requires GivesExamples<D>
  {
    return dataset_->get(indices_.at(index), rng);
  }
  auto get_batch(const at::Tensor& rows, bool pinned) const
    requires GivesBatches<D>
  {
    return dataset_->get_batch(indices_.all().index_select(0, rows), pinned);
  }

  const D& dataset() const { return *dataset_; }
  // Shapes: [M] int64, on the CPU.
  const at::Tensor& indices() const { return indices_.all(); }
  // Of the indices, and of the dataset below where that has one.
  uint64_t identity() const {
    if constexpr (HasIdentity<D>) {
      return datasets::joined_identity(indices_.identity(), dataset_->identity());
    } else {
      return indices_.identity();
    }
  }

 private:
  std::shared_ptr<const D> dataset_;
  datasets::SubsetIndices indices_;
};

// What is no dataset: the text is the compiler's whole answer.
template <class D>
  requires(!IsDataset<D>)
class Subset<D> {
  static_assert(kNever<D>,
                "a Subset takes a dataset (IsDataset): a muster::Dataset, or a type with Example, "
                "size() const, and get(index, rng) const or get_batch(rows, pinned) const");

 public:
  Subset(const auto& /*given*/, const std::vector<int64_t>& /*indices*/) {}
};

template <class Given>
Subset(Given, std::vector<int64_t>) -> Subset<DatasetOf<Given>>;
template <class Given, std::same_as<at::Tensor> Indices>
Subset(Given, const Indices&) -> Subset<DatasetOf<Given>>;

}  // namespace muster
