#include "muster/data/loader.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

std::string worker_text(const WorkerPlace& place) {
  return place.worker < 0 ? "" : cat(" (worker ", place.worker, ")");
}

int64_t checked(const char* what, int64_t value, int64_t least) {
  if (value >= least) return value;
  throw Error(ErrorCode::invalid_argument,
              cat("data loader: expected ", what, " of at least ", least, ", got ", value));
}

}  // namespace

void BadSamples::add(int64_t sample, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (count_++ == reported_) first_ = cat("sample ", sample, ": ", why);
}

int64_t BadSamples::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void BadSamples::report() {
  const std::lock_guard lock(mutex_);
  if (count_ == reported_) return;
  log(LogLevel::warn, cat("data loader: ", count_ - reported_,
                          " samples could not be read and were left out; the "
                          "first: ",
                          first_));
  reported_ = count_;
}

LoaderCore::LoaderCore(int64_t dataset_size, std::shared_ptr<BatchSampler> sampler, bool counts_epochs,
                       const DataLoaderOptions& options)
    : shared_(std::make_shared<LoaderShared>()), sampler_(std::move(sampler)), counts_epochs_(counts_epochs) {
  shared_->options = options;
  if (options.accumulate < 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("data loader: expected at least 1 batch a step, got accumulate ", options.accumulate,
                    "; pass 1 or more"));
  }
  checked("workers", options.workers, 0);
  checked("batches ahead", options.ahead, 0);
  if (sampler_->dataset_size() != dataset_size) {
    throw Error(ErrorCode::invalid_argument,
                cat("data loader: expected a sampler for ", dataset_size, " samples, got one for ",
                    sampler_->dataset_size(), "; make it with the data set's size"));
  }
  position_.dataset_size = dataset_size;
}

EpochBatches LoaderCore::start(int64_t* first) {
  if (counts_epochs_ && !placed_) sampler_->set_epoch(next_epoch_);
  EpochBatches epoch = sampler_->start();
  next_epoch_ = epoch.epoch + 1;
  placed_ = false;
  *first = std::min(std::exchange(skip_, 0), epoch.size);
  return epoch;
}

void LoaderCore::skip(int64_t batches) {
  if (batches < 0) {
    throw Error(ErrorCode::invalid_argument, cat("data loader: expected to skip 0 or more batches, got ",
                                                 batches, "; pass those already done"));
  }
  skip_ = batches;
}

BatchPlace LoaderCore::place_of(const EpochBatches& epoch, int64_t batch) const {
  const int64_t begin = batch / options().accumulate * options().accumulate;
  const int64_t end = begin + std::min(options().accumulate, epoch.size - begin);
  int64_t samples_of_step = 0;
  for (int64_t i = begin; i < end; ++i) samples_of_step += epoch.count_of_all(i);
  return {.weight = static_cast<double>(epoch.ranks) * static_cast<double>(epoch.count(batch)) /
                    static_cast<double>(samples_of_step),
          .last = batch + 1 == end};
}

// After an epoch's last batch training is at the beginning of the next.
void LoaderCore::note_batch(const EpochBatches& epoch, int64_t batch, int64_t samples, bool last) {
  ++stats_.batches;
  stats_.samples += samples;
  if (!last) return;
  const bool ends_epoch = batch + 1 == epoch.size;
  position_.epoch = ends_epoch ? epoch.epoch + 1 : epoch.epoch;
  position_.consumed = ends_epoch ? 0 : epoch.consumed_after(batch);
  ++position_.step;
}

void LoaderCore::note_stall(std::chrono::nanoseconds stall) {
  stats_.seconds_stalled += std::chrono::duration<double>(stall).count();
}

void LoaderCore::go_on() {
  if (!placed_) restore(position_);
}

void LoaderCore::set_epoch(int64_t epoch) {
  sampler_->set_epoch(epoch);
  next_epoch_ = epoch;
  placed_ = true;
}

void LoaderCore::restore(const DataPosition& position) {
  sampler_->set_epoch(position.epoch, position.consumed, position.dataset_size);
  const int64_t size = position_.dataset_size;
  if (position.dataset_size != 0 && position.dataset_size != size) {
    log(LogLevel::warn, cat("data loader: training began on ", position.dataset_size,
                            " samples, and the data set has ", size, ": epochs have other samples now"));
  }
  position_ = {position.epoch, position.consumed, size, position.step};
  next_epoch_ = position.epoch;
  placed_ = true;
}

LoaderStats LoaderCore::stats() const {
  LoaderStats stats = stats_;
  stats.bad_samples = shared_->bad.count();
  return stats;
}

void check_weight_read(const StepWeight& weight, int64_t batch) {
  if (weight.is_read() || weight.unread() == 1 || !c10::GradMode::is_enabled()) return;
  throw Error(ErrorCode::failed_precondition, cat("data loader: expected the loss of batch ", batch,
                                                  " to be multiplied with batch.weight, ", weight.unread(),
                                                  ", got a batch whose weight nobody has read; write (loss * "
                                                  "batch.weight).backward(), evaluate under "
                                                  "torch::NoGradGuard, or set check_weight = false"));
}

void check_epoch_has_batches(const EpochBatches& epoch, const DataPosition& position) {
  if (epoch.size > 0 || position.consumed > 0) return;
  throw Error(ErrorCode::failed_precondition,
              cat("data loader: expected an epoch with at least 1 batch of this rank, got none of ",
                  position.dataset_size, " samples for ", epoch.ranks,
                  " ranks; use a smaller batch size or fewer ranks, or turn drop_last off"));
}

// The exception stays within the new one, for std::rethrow_if_nested.
void fail_loading(const std::string& what) {
  ErrorCode code = ErrorCode::backend_failed;
  std::string why;
  try {
    throw;
  } catch (const Error& error) {
    code = error.code();
    why = error.what();
  } catch (const std::bad_alloc&) {
    code = ErrorCode::unavailable;
    why = "out of memory";
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
    why = "an exception that is no std::exception";
  }
  std::throw_with_nested(Error(code, cat("data loader: ", what, ": ", why)));
}

void fail_sample(int64_t sample, const WorkerPlace& place) {
  fail_loading(cat("sample ", sample, worker_text(place)));
}

void fail_batch(const std::vector<int64_t>& samples, const WorkerPlace& place) {
  const std::string what =
      cat("batch of samples ", samples.empty() ? "" : cat(samples.front(), " … ", samples.back()),
          worker_text(place));
  if (std::current_exception()) fail_loading(what);
  throw Error(
      ErrorCode::invalid_argument,
      cat("data loader: ", what, ": expected a sample that can be read, got none of ", samples.size()));
}

std::string text_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace muster
