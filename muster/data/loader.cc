#include "muster/data/loader.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// How many of `samples` are used when only full batches are (or all are).
int64_t used_samples(int64_t samples, const DataLoaderOptions& options) {
  return options.drop_last ? samples - samples % options.batch_size : samples;
}

// The rows of `source`, on the device asked for.
at::Tensor take(const at::Tensor& source, const at::Tensor& rows, const DataLoaderOptions& options) {
  if (!source.is_cpu() || !options.device.is_cuda() || !options.pin_memory)
    return source.index_select(0, rows.to(source.device())).to(options.device);
  // Gathered straight into page-locked memory; the caching allocator keeps it until the copy is done.
  auto shape = source.sizes().vec();
  shape[0] = rows.size(0);
  auto pinned = at::empty(shape, source.options().pinned_memory(true));
  at::index_select_out(pinned, source, 0, rows);
  return pinned.to(options.device, /*non_blocking=*/true);
}

}  // namespace

DataLoader::DataLoader(TensorDataset dataset, const DataLoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  if (options.batch_size < 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("data loader: expected a batch size of at least 1, got ", options.batch_size,
                    "; pass the samples of one rank's batch"));
  }
}

DataLoader::DataLoader(TensorDataset dataset, DistributedSampler& sampler, const DataLoaderOptions& options)
    : DataLoader(std::move(dataset), options) {
  sampler_ = &sampler;
  if (const auto length = sampler.identity().length; length != dataset_.size()) {
    throw Error(ErrorCode::invalid_argument,
                cat("data loader: expected a sampler for ", dataset_.size(), " samples, got one for ", length,
                    "; make it with the data set's size"));
  }
}

DataLoader::Iterator DataLoader::begin() {
  std::vector<int64_t> indices;
  if (sampler_ != nullptr) {
    indices = sampler_->indices();
  } else {
    indices.resize(static_cast<size_t>(dataset_.size()));
    std::iota(indices.begin(), indices.end(), 0);
  }
  return {*this, std::move(indices), std::exchange(skip_, 0)};
}

void DataLoader::skip(int64_t batches) {
  if (batches < 0) {
    throw Error(ErrorCode::invalid_argument, cat("data loader: expected to skip 0 or more batches, got ",
                                                 batches, "; pass those already done"));
  }
  skip_ = batches;
}

int64_t DataLoader::num_samples() const {
  return used_samples(sampler_ != nullptr ? sampler_->num_samples() : dataset_.size(), options_);
}

int64_t DataLoader::num_batches() const {
  const int64_t samples = num_samples();
  return samples / options_.batch_size + (samples % options_.batch_size != 0 ? 1 : 0);
}

DataLoader::Iterator::Iterator(const DataLoader& loader, std::vector<int64_t> indices,
                               int64_t skipped_batches)
    : loader_(&loader), indices_(std::move(indices)) {
  end_ = used_samples(static_cast<int64_t>(indices_.size()), loader.options_);
  // Compared before multiplying: a skip beyond the end is the end.
  position_ = skipped_batches > end_ / loader.options_.batch_size
                  ? end_
                  : skipped_batches * loader.options_.batch_size;
}

Batch DataLoader::Iterator::operator*() const {
  const auto& options = loader_->options_;
  const int64_t count = std::min(options.batch_size, end_ - position_);
  const auto rows = at::from_blob(const_cast<int64_t*>(indices_.data() + position_), {count}, at::kLong);
  return {take(loader_->dataset_.features(), rows, options), take(loader_->dataset_.labels(), rows, options)};
}

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  position_ = std::min(end_, position_ + std::min(loader_->options_.batch_size, end_ - position_));
  return *this;
}

}  // namespace muster
