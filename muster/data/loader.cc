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
  if (options.accumulate < 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("data loader: expected at least 1 batch a step, got accumulate ", options.accumulate,
                    "; pass 1 or more"));
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
  const int64_t share = sampler.identity().share;
  if (has_shares() && (share != options.batch_size || options.drop_last)) {
    throw Error(
        ErrorCode::invalid_argument,
        cat("data loader: expected batch_size ", share, ", this rank's share of the global batch of ",
            sampler.identity().global_batch, ", and drop_last of the sampler alone, got batch_size ",
            options.batch_size, options.drop_last ? " and drop_last" : "", "; pass ctx.batch_size(…)"));
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

int64_t DataLoader::samples_of(int64_t batch) const {
  if (batch >= num_batches()) return 0;
  if (has_shares()) return sampler_->batch_samples(batch);
  return std::min(num_samples() - batch * options_.batch_size, options_.batch_size);
}

int64_t DataLoader::samples_of_all(int64_t batch) const {
  if (has_shares() && batch < num_batches()) return sampler_->global_samples(batch);
  return samples_of(batch) * (sampler_ != nullptr ? sampler_->identity().num_replicas : 1);
}

DataLoader::Iterator::Iterator(const DataLoader& loader, std::vector<int64_t> indices,
                               int64_t skipped_batches)
    : loader_(&loader), indices_(std::move(indices)) {
  end_ = used_samples(static_cast<int64_t>(indices_.size()), loader.options_);
  // Compared before multiplying: a skip beyond the end is the end.
  const int64_t size = loader.options_.batch_size;
  batch_ = std::min(skipped_batches, end_ / size + (end_ % size != 0 ? 1 : 0));
  position_ = std::min(end_, batch_ * size);
}

int64_t DataLoader::Iterator::count() const {
  return std::min(loader_->samples_of(batch_), end_ - position_);
}

Batch DataLoader::Iterator::operator*() const {
  const auto& options = loader_->options_;
  const auto rows = at::from_blob(const_cast<int64_t*>(indices_.data() + position_), {count()}, at::kLong);
  const int64_t step_begin = batch_ / options.accumulate * options.accumulate;
  const int64_t step_end = step_begin + std::min(options.accumulate, loader_->num_batches() - step_begin);
  int64_t samples_of_step = 0;
  for (int64_t i = step_begin; i < step_end; ++i) samples_of_step += loader_->samples_of_all(i);
  const double ranks =
      loader_->sampler_ != nullptr ? static_cast<double>(loader_->sampler_->identity().num_replicas) : 1;
  return {.features = take(loader_->dataset_.features(), rows, options),
          .labels = take(loader_->dataset_.labels(), rows, options),
          .weight = ranks * static_cast<double>(count()) / static_cast<double>(samples_of_step),
          .last = batch_ + 1 == step_end};
}

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  position_ += count();
  ++batch_;
  return *this;
}

}  // namespace muster
