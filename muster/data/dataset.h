// The input of a loader (loader.h): a dataset of any size whose examples are computed or read on
// demand, or tensors in memory.
//
//   struct Photo { at::Tensor pixels, label; };
//   struct Photos : muster::Dataset<Photo> {
//     int64_t size() const override { return std::ssize(paths); }
//     Photo get(int64_t index, muster::Generator& rng) const override { … }
//   };
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "muster/base/tensors.h"
#include "muster/data/generator.h"

namespace muster {

// `ExampleType` is a struct of tensors, a tensor, or anything that collate.h can collate.
template <class ExampleType>
class Dataset {
 public:
  using Example = ExampleType;
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Returns example `index`, from 0. Called by several threads at once: by the workers of every
  // loop that runs. A loop of 1 worker, the default on a GPU, calls it on that worker's thread
  // alone, while the thread of the loop computes. Take all randomness from `rng`, which depends
  // only on (seed, epoch, index).
  virtual Example get(int64_t index, Generator& rng) const = 0;
};

struct LabelledExample {
  at::Tensor features;
  at::Tensor labels;
};

// Tensors in memory; a batch's rows are taken from them in one operation.
class TensorDataset {
 public:
  using Example = LabelledExample;

  // Shapes: features [N, ...], labels [N, ...], on the same device.
  // Throws: invalid_argument if N or the devices differ, or if a tensor is undefined or has no
  // dimension.
  TensorDataset(at::Tensor features, at::Tensor labels);

  const at::Tensor& features() const { return features_; }
  const at::Tensor& labels() const { return labels_; }
  int64_t size() const { return features_.size(0); }

  // Shapes: rows [B] int64, on the CPU; the batch's tensors [B, ...]. `pinned`: in page-locked
  // memory.
  Example get_batch(const at::Tensor& rows, bool pinned) const;

 private:
  Tensor features_;
  Tensor labels_;
};

struct DatasetSplit {
  TensorDataset train;
  TensorDataset test;
};

// A dataset that returns many examples at once, already collated, as TensorDataset does.
template <class D>
concept GivesBatches = requires(const D& dataset, const at::Tensor& rows) {
  typename D::Example;
  dataset.get_batch(rows, true);
};

// A dataset that returns its examples one by one.
template <class D>
concept GivesExamples = requires(const D& dataset, Generator& rng) {
  { dataset.get(int64_t{0}, rng) } -> std::convertible_to<typename D::Example>;
};

// A Dataset, or a type with Example, size(), and get() or get_batch() like it.
template <class D>
concept IsDataset = (GivesBatches<D> || GivesExamples<D>) && requires(const D& dataset) {
  { dataset.size() } -> std::convertible_to<int64_t>;
};

// A dataset whose samples are some of another's: two of one size may have different samples.
// Loaders compare the number, between ranks and with a position that they resume.
template <class D>
concept HasIdentity = requires(const D& dataset) {
  { dataset.identity() } -> std::same_as<uint64_t>;
};

namespace datasets {

template <class Given>
struct Held {
  using Type = Given;
};
template <class D>
struct Held<std::shared_ptr<D>> {
  using Type = std::remove_const_t<D>;
};

[[noreturn]] void refuse_null_dataset();

}  // namespace datasets

// The dataset that a program gives: by value, or as a std::shared_ptr that others have too.
template <class Given>
using DatasetOf = typename datasets::Held<Given>::Type;

template <class Given>
concept GivesDataset = IsDataset<DatasetOf<Given>>;

// Takes streams too. Throws: invalid_argument for a null pointer.
template <class Given>
std::shared_ptr<const DatasetOf<Given>> shared_dataset(Given dataset) {
  if constexpr (std::same_as<DatasetOf<Given>, Given>) {
    return std::make_shared<const Given>(std::move(dataset));
  } else {
    if (!dataset)
      datasets::refuse_null_dataset();
    return dataset;
  }
}

}  // namespace muster
