// Batches of an in-memory data set, in a sampler's order, on the rank's device. LibTorch's own DataLoader
// cannot be started again after an early break, and its distributed sampler repeats its order: hence this
// one.
//
//   for (const auto& batch : loader) {
//     const auto guard = model.no_sync_if(!batch.last);
//     (mean_loss_of(batch) * batch.weight).backward();
//     if (batch.last) step();
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "muster/data/dataset.h"
#include "muster/data/distributed_sampler.h"

namespace muster {

struct Batch {
  at::Tensor features;
  at::Tensor labels;
  // What mean losses are multiplied with, so that the gradients of a step, averaged over the ranks, are those
  // of the joined batch: this batch's part of the samples that all ranks use in the step, times the ranks. 1
  // where every batch of a step is as large.
  double weight = 1;
  bool last = true;  // of its step: reduce gradients in this backward, and step after it
  int64_t size() const { return labels.size(0); }
};

struct DataLoaderOptions {
  int64_t batch_size = 1;        // samples of this rank; with a sampler's shares it must be this rank's share
  int64_t accumulate = 1;        // batches of a step; an epoch's last step may have fewer
  bool drop_last = false;        // leave out a last batch that is not full
  at::Device device = at::kCPU;  // where batches are put
  bool pin_memory = true;        // copy to a GPU through page-locked memory, without waiting
};

class DataLoader {
 public:
  // In the data set's order, the same on every rank. Throws: invalid_argument when batch_size or accumulate
  // is less than 1.
  DataLoader(TensorDataset dataset, const DataLoaderOptions& options);

  // In the order of `sampler`, which must outlive the loader; every begin() starts one of its epochs.
  // Throws: invalid_argument also when the sampler is for another length, or has another share for this rank.
  DataLoader(TensorDataset dataset, DistributedSampler& sampler, const DataLoaderOptions& options);

  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Batch operator*() const;
    Iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return position_ >= end_; }

   private:
    friend class DataLoader;
    Iterator(const DataLoader& loader, std::vector<int64_t> indices, int64_t skipped_batches);
    int64_t count() const;

    const DataLoader* loader_;
    std::vector<int64_t> indices_;
    int64_t batch_;     // the current one's number in the epoch
    int64_t position_;  // of its first sample
    int64_t end_;
  };

  // Starts an epoch; any number may be begun, and left early.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  // The next begin() (and no later one) leaves out its first `batches` batches, which a resumed epoch has
  // had.
  // Throws: invalid_argument when negative.
  void skip(int64_t batches);

  // Samples and batches of a whole epoch on this rank, without what drop_last leaves out.
  int64_t num_samples() const;
  int64_t num_batches() const;
  const TensorDataset& dataset() const { return dataset_; }

 private:
  // Samples of this rank's `batch`-th batch, and of all ranks' together.
  int64_t samples_of(int64_t batch) const;
  int64_t samples_of_all(int64_t batch) const;
  bool has_shares() const { return sampler_ != nullptr && !sampler_->shares().empty(); }

  TensorDataset dataset_;
  DistributedSampler* sampler_ = nullptr;
  DataLoaderOptions options_;
  int64_t skip_ = 0;
};

}  // namespace muster
