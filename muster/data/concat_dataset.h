// Several datasets as one, one after the other, as torch.utils.data.ConcatDataset. Their types may
// differ, their examples may not.
//
//   const muster::ConcatDataset all(photos, more_photos);
//   const muster::ConcatDataset text(std::vector{wikipedia, books});  // TokenFiles
//
// An order over it may take more of one than of another: mixture.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/never.h"
#include "muster/base/tensors.h"
#include "muster/data/collate.h"
#include "muster/data/dataset.h"

namespace muster {

namespace datasets {

// Where each dataset begins among the samples of all.
class JoinedSizes {
 public:
  // Throws: invalid_argument without a dataset.
  explicit JoinedSizes(Int64s sizes);
  const Int64s& sizes() const { return sizes_; }
  int64_t total() const { return ends_.back(); }
  struct Place {
    size_t part;
    int64_t index;  // there
  };
  // Throws: invalid_argument for a sample that there is not.
  Place place_of(int64_t sample) const;

 private:
  Int64s sizes_;
  Int64s ends_;
};

// The rows of a batch that come from one dataset.
struct RowsOfPart {
  size_t part;
  Tensor rows;    // there
  Tensor places;  // in the batch
};
std::vector<RowsOfPart> rows_by_part(const JoinedSizes& sizes, const Tensor& rows);

Tensor first_row();

// Copies the rows of `from` to their places in `to`, which is made at the first call.
void put_rows(const Tensor& from, const Tensor& places, int64_t size, bool pinned, Tensor* to);

// Throws: invalid_argument if the tensors of a sample of dataset `part` are not like those of the
// first: in number, type, shape or device.
void check_alike(const Tensors& of_first, const Tensors& of_part, size_t part);

template <class Batch>
Tensors tensors_of(Batch& batch) {
  Tensors tensors;
  for_each_tensor(batch, [&](const Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

template <class First, class... Others>
concept CanBeJoined = IsDataset<First> && (IsDataset<Others> && ...) &&
                      (std::same_as<typename First::Example, typename Others::Example> && ...);

}  // namespace datasets

template <class First, class... Others>
class ConcatDataset {
 public:
  using Example = typename First::Example;

  // Each is a dataset, or a std::shared_ptr to one.
  // Throws: invalid_argument if samples of two differ in the types, shapes or device of their
  // tensors, where these are known before reading (get_batch).
  template <GivesDataset... Given>
    requires(sizeof...(Given) > 0)
  explicit ConcatDataset(Given... datasets)
      : ConcatDataset(std::vector<Part>{part_of(shared_dataset(std::move(datasets)))...}) {}
  // Any number of one type. Throws: also for none.
  template <GivesDataset Given>
  explicit ConcatDataset(const std::vector<Given>& datasets) : ConcatDataset(parts_of(datasets)) {}

  int64_t size() const { return sizes_.total(); }
  // Of each dataset, for mixture().
  const std::vector<int64_t>& sizes() const { return sizes_.sizes(); }

  // `rng` depends on the index among all.
  Example get(int64_t index, Generator& rng) const
    requires(GivesExamples<First> && (GivesExamples<Others> && ...))
  {
    const auto place = sizes_.place_of(index);
    return parts_[place.part].get(place.index, rng);
  }

  auto get_batch(const at::Tensor& rows, bool pinned) const
    requires(GivesBatches<First> && (GivesBatches<Others> && ...))
  {
    const auto by_part = datasets::rows_by_part(sizes_, rows);
    // A batch of one dataset alone needs no other memory.
    if (by_part.size() == 1)
      return parts_[by_part[0].part].get_batch(by_part[0].rows, pinned);
    Rows joined;
    Tensors made;
    for (const auto& [part, rows_there, places] : by_part) {
      auto batch = parts_[part].get_batch(rows_there, /*pinned=*/false);
      const auto tensors = datasets::tensors_of(batch);
      made.resize(tensors.size());
      for (const size_t i : indices_of(tensors))
        datasets::put_rows(tensors[i], places, rows.numel(), pinned, &made[i]);
      joined = std::move(batch);
    }
    size_t next = 0;
    for_each_tensor(joined, [&](at::Tensor& tensor) { tensor = made[next++]; });
    return joined;
  }

  // A hash of those of its datasets that have one.
  uint64_t identity() const
    requires(HasIdentity<First> || (HasIdentity<Others> || ...))
  {
    uint64_t hash = 0;
    for (const Part& part : parts_)
      hash = hash * 31 + part.identity;
    return hash;
  }

 private:
  static constexpr bool kBatches = GivesBatches<First> && (GivesBatches<Others> && ...);
  // Never called: its type is that of a batch.
  static auto rows_of(const First& dataset) {
    if constexpr (kBatches) {
      return dataset.get_batch(Tensor(), false);
    } else {
      return 0;
    }
  }
  using Rows = decltype(rows_of(std::declval<const First&>()));
  static_assert(!kBatches || is_of_tensors<Rows, /*kInLists=*/false>(),
                "get_batch() of the datasets that are joined must return tensors, tuples of them, "
                "or plain structs of them");

  struct Part {
    int64_t size = 0;
    uint64_t identity = 0;
    std::function<Example(int64_t index, Generator& rng)> get{};
    std::function<Rows(const Tensor& rows, bool pinned)> get_batch{};
  };

  template <class D>
  static Part part_of(const std::shared_ptr<const D>& dataset) {
    static_assert(std::is_same_v<D, First> || (std::is_same_v<D, Others> || ...));
    Part part{.size = dataset->size()};
    if constexpr (HasIdentity<D>)
      part.identity = dataset->identity();
    if constexpr (GivesExamples<D>)
      part.get = [dataset](int64_t index, Generator& rng) {
        return dataset->get(index, rng);
      };
    if constexpr (kBatches)
      part.get_batch = [dataset](const Tensor& rows, bool pinned) {
        return dataset->get_batch(rows, pinned);
      };
    return part;
  }
  template <class Given>
  static std::vector<Part> parts_of(const std::vector<Given>& datasets) {
    return mapped(datasets, [&](const Given& dataset) { return part_of(shared_dataset(dataset)); });
  }
  static Int64s sizes_of(const std::vector<Part>& parts) { return mapped(parts, &Part::size); }

  explicit ConcatDataset(std::vector<Part> parts)
      : parts_(std::move(parts)), sizes_(sizes_of(parts_)) {
    if constexpr (kBatches)
      check_batches();
  }
  void check_batches() const {
    Tensors of_first;
    for (const size_t i : indices_of(parts_)) {
      if (parts_[i].size == 0)
        continue;
      auto sample = parts_[i].get_batch(datasets::first_row(), /*pinned=*/false);
      const auto tensors = datasets::tensors_of(sample);
      if (of_first.empty())
        of_first = tensors;
      datasets::check_alike(of_first, tensors, i);
    }
  }

  std::vector<Part> parts_;
  datasets::JoinedSizes sizes_;
};

// What cannot be joined: the text is the compiler's whole answer.
template <class First, class... Others>
  requires(!datasets::CanBeJoined<First, Others...>)
class ConcatDataset<First, Others...> {
  static_assert(kNever<First>,
                "a ConcatDataset takes datasets (IsDataset) of one type of Example: give them one, "
                "or write a dataset that makes the one of the other");

 public:
  explicit ConcatDataset(const auto&...) {}
};

template <class... Given>
ConcatDataset(Given...) -> ConcatDataset<DatasetOf<Given>...>;
template <class Given>
ConcatDataset(std::vector<Given>) -> ConcatDataset<DatasetOf<Given>>;

}  // namespace muster
