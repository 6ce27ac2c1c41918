// Lets an example be made where it will lie in its batch, so that collating copies nothing of it.
// In a data set's get():
//
//   auto pixels = muster::empty_in_batch({3, 224, 224}, at::kFloat);  // to be filled
//
// transform::normalize (transforms.h) writes there by itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/data/batch_memory.h"

namespace muster {

// Uninitialised, on the CPU, contiguous. Within a loader's call of get() it may be a part of the
// batch that is being made: then collating copies nothing, if the tensor is of the example and
// nobody else has it or a view of it. Else, as elsewhere, it is a tensor like any other. Return it
// or drop it: what a data set keeps holds the memory of a whole batch. For a batch that is pinned
// it is page-locked: wait for copies of it to a GPU before it is dropped.
at::Tensor empty_in_batch(at::IntArrayRef sizes, at::ScalarType type);

// How large the tensors of a loader's examples are, as its last batch had them. Called by several
// threads at once.
class ExampleSizes {
 public:
  std::vector<int64_t> expected() const;
  void expect(std::vector<int64_t> bytes);
  // No example of this size gets a place any more: a data set keeps what it has made.
  void refuse(int64_t bytes);

 private:
  mutable std::mutex mutex_;
  Int64s expected_;
  Int64s refused_;
};

// What the batches of one loader have in common.
struct LoaderMemory {
  // `ahead`: as of DataLoaderOptions. `pinned`: batches are in page-locked memory.
  LoaderMemory(int workers, int64_t ahead, bool pinned);

  const std::shared_ptr<BatchMemory> batches;
  const bool pinned;
  ExampleSizes sizes;
};

// The batch that a thread makes, while it lives: its memory, and the places of its examples in it.
// There are none in a loader's first batch, which shows how large examples are.
class BatchPlaces : NoCopy {
 public:
  // `loader` must live as long as this.
  BatchPlaces(LoaderMemory& loader, int64_t examples);
  ~BatchPlaces();

  // Of this thread: what it makes from now on is of example `number` of its batch, or, after
  // end_examples(), of the whole batch. They do nothing where no batch is made.
  static void begin_example(int64_t number);
  static void end_examples();

  // The batch of these tensors, if at least one lies at its place and nobody else uses another's;
  // those that lie elsewhere are copied. `tensors`, which must be alike, are then empty.
  static std::optional<at::Tensor> joined(Tensors& tensors);

 private:
  friend Tensor empty_in_batch(at::IntArrayRef sizes, at::ScalarType type);
  struct Strip;  // a tensor of the batch, with a place for each example

  std::optional<c10::Storage> place(int64_t bytes);
  Strip* strip_with_room(int64_t bytes);
  std::optional<Tensor> join(Tensors& tensors);
  std::optional<Tensor> filled(const Strip& strip, const Tensors& tensors) const;

  LoaderMemory& loader_;
  UseOfBatchMemory use_;
  const int64_t examples_;
  int64_t example_ = -1;  // the one that is made now
  const Int64s expected_;
  Int64s found_;
  std::vector<std::unique_ptr<Strip>> strips_;
  BatchPlaces* const before_;
};

}  // namespace muster
