// The memory of a loader's batches. Fresh memory is dear: the system clears each page of it at the
// first write. So what a batch has used goes back to its loader when the last tensor in it is gone,
// and a later batch gets it. As long as a tensor or a view of the batch lives, nobody else does.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorOptions.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"

namespace muster {

// Of one loader; its batches may outlive it. Called by several threads at once.
class BatchMemory : public std::enable_shared_from_this<BatchMemory> {
 public:
  // `most_spare`: it keeps at most the memory of so many of its largest batches for later ones.
  explicit BatchMemory(int64_t most_spare) : most_spare_(static_cast<size_t>(most_spare)) {}

  // Uninitialised.
  c10::DataPtr allocate(size_t bytes);
  // A batch has taken so many bytes so far, in all its tensors.
  void note_batch(size_t bytes);
  // What it keeps.
  size_t spare_bytes() const;

 private:
  struct Block {
    c10::DataPtr data;  // LibTorch's
    size_t size = 0;
  };
  Block spare_block(size_t bytes);
  void keep(Block block);

  const size_t most_spare_;
  mutable std::mutex mutex_;
  std::vector<Block> spare_;  // the one that was kept last is last
  size_t largest_batch_ = 0;  // bytes
};

// While it lives, this thread makes a batch, and batch_tensor() takes memory from `memory`.
class UseOfBatchMemory : NoCopy {
 public:
  explicit UseOfBatchMemory(BatchMemory& memory);
  ~UseOfBatchMemory();

  c10::DataPtr allocate(size_t bytes);

 private:
  BatchMemory& memory_;
  size_t bytes_ = 0;  // of the batch so far
  UseOfBatchMemory* before_;
};

// Whether a loader has memory for what this thread makes of such a tensor. Gradients need an
// operation's own result.
bool has_batch_memory_for(const Tensor& source);

// Without elements, for an operation that is told to write its result there: it takes memory of the
// loader for which this thread makes a batch. Page-locked memory is LibTorch's, which keeps it too.
Tensor batch_tensor(const at::TensorOptions& options);

}  // namespace muster
