// The part of a loader that knows no type of example. It keeps the training position: `consumed`
// moves only with whole steps, since only those can be resumed. A loop over one epoch and a loop
// over steps() leave different positions behind (begin_epoch, begin_steps, leave_epoch). The file
// ends with the errors of loading, which name the sample and the worker.
#include "muster/data/loader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <string>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/base/uneven_inputs.h"
#include "muster/data/as_double.h"
#include "muster/data/own_loaders.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

// The text is empty without workers: the training thread has read the sample itself.
std::string worker_text(const WorkerPlace& place) {
  return place.worker < 0 ? "" : cat(" (worker ", place.worker, ")");
}

void check_not_negative(const char* what, int64_t value) {
  if (value < 0) {
    throw invalid_argument(
        "data loader: expected ", what, " of at least 0, got ", value, "; pass 0 or more");
  }
}

// A batch's loss is a mean. The weight turns the ranks' average into the mean over all samples of
// the step.
BatchPlace place_in_step(const EpochBatches& epoch, int64_t batch, int64_t samples, bool is_last) {
  return {.weight = as_double(epoch.ranks) * as_double(epoch.count(batch)) / as_double(samples),
          .last = is_last,
          .samples_of_step = samples};
}

}  // namespace

int num_workers(const std::optional<int>& asked, Device device) {
  return asked.value_or(device.is_cuda() ? 1 : 0);
}

// Several workers may call this. Only the first sample after a report keeps its reason; the others
// are counted.
void BadSamples::add(int64_t sample, const std::string& why) {
  const Lock lock(mutex_);
  if (std::ssize(all_) == reported_)
    first_ = cat("sample ", sample, ": ", why);
  all_.push_back(sample);
}

int64_t BadSamples::count() const {
  const Lock lock(mutex_);
  return std::ssize(all_);
}

Int64s BadSamples::all() const {
  const Lock lock(mutex_);
  return all_;
}

// One warning speaks for all samples since the last one, so damaged data does not flood the log.
void BadSamples::report() {
  const Lock lock(mutex_);
  const int64_t count = std::ssize(all_);
  if (count == reported_)
    return;
  log_warning("data loader: ",
              plural(count - reported_, "sample"),
              " could not be read and were left out; the "
              "first: ",
              first_);
  reported_ = count;
}

LoaderCore::LoaderCore(int64_t dataset_size,
                       std::shared_ptr<BatchSampler> sampler,
                       const DataLoaderOptions& options)
    : shared_(std::make_shared<LoaderShared>(options)), sampler_(std::move(sampler)) {
  const int workers = *shared_->options.workers;
  if (options.accumulate < 1) {
    throw invalid_argument("data loader: expected at least 1 batch a step, got accumulate ",
                           options.accumulate,
                           "; pass 1 or more");
  }
  check_not_negative("workers", workers);
  check_not_negative("batches ahead", options.ahead);
  if (options.timeout && (workers == 0 || options.timeout->count() <= 0)) {
    throw invalid_argument(
        "data loader: expected a timeout of at least 1 ms, and workers to wait for, got ",
        options.timeout->count(),
        " ms and ",
        workers,
        " workers; leave the timeout out");
  }
  if (sampler_->dataset_size() != dataset_size) {
    throw invalid_argument("data loader: expected a sampler for ",
                           plural(dataset_size, "sample"),
                           ", got one for ",
                           sampler_->dataset_size(),
                           "; make it with the data set's size");
  }
  // A checkpoint holds both, so that a resumed run can notice other data and another order.
  position_.dataset_size = dataset_size;
  position_.order = sampler_->order_number();
}

// The sampler's order is one of the first size: it would leave out what came later.
void check_same_size(int64_t expected, int64_t size) {
  if (size == expected)
    return;
  throw failed_precondition("data loader: expected a data set of ",
                            plural(expected, "sample"),
                            ", as when the loader was made, got ",
                            size,
                            "; make another loader when the size has changed");
}

// The ranks compare their samplers once, in training. Evaluation may differ by rank.
void LoaderCore::compare_with_ranks() {
  if (is_compared_ || options().undivided || !c10::GradMode::is_enabled())
    return;
  is_compared_ = true;
  if (const auto identity = sampler_->uncompared())
    OwnLoaders::check(*identity);
}

// A sampler that has started was not moved since, so the next epoch is meant.
EpochBatches LoaderCore::start() {
  if (sampler_->started())
    sampler_->set_epoch(sampler_->epoch() + 1);
  if (!new_shares_.empty())
    sampler_->set_shares(std::exchange(new_shares_, {}));
  compare_with_ranks();
  return sampler_->start();
}

// The workers may already be at the next epoch; that is of use only if nothing has changed since.
bool LoaderCore::goes_on_after(const EpochBatches& epoch) const {
  return new_shares_.empty() && sampler_->started() && sampler_->epoch() == epoch.epoch;
}

// A step is `accumulate` batches; the epoch's last may have fewer.
int64_t LoaderCore::samples_of_step(const EpochBatches& epoch, int64_t batch) const {
  const int64_t begin = batch / options().accumulate * options().accumulate;
  const int64_t end = begin + std::min(options().accumulate, epoch.size_of_all - begin);
  int64_t samples = 0;
  for (int64_t i = begin; i < end; ++i)
    samples += epoch.count_of_all(i);
  return samples;
}

int64_t LoaderCore::global_batch() const {
  const EpochBatches epoch = sampler_->whole_epoch();
  return epoch.size_of_all == 0 ? 0 : samples_of_step(epoch, 0);
}

BatchPlace LoaderCore::place_of(const EpochBatches& epoch, int64_t batch) const {
  const bool is_last = (batch + 1) % options().accumulate == 0 || batch + 1 == epoch.size;
  return place_in_step(epoch, batch, samples_of_step(epoch, batch), is_last);
}

// What the epoch does not have any more is of the epochs after it, which are whole, and all alike
// in their numbers (BatchSampler::whole_epoch).
int64_t LoaderCore::samples_of_whole_step(const EpochBatches& epoch, int64_t batch) const {
  int64_t left = options().accumulate;
  int64_t samples = 0;
  for (int64_t i = batch; i < epoch.size_of_all && left > 0; ++i, --left)
    samples += epoch.count_of_all(i);
  if (left == 0)
    return samples;
  const EpochBatches later = sampler_->whole_epoch();
  for (int64_t i = 0; later.size_of_all > 0 && i < left; ++i)
    samples += later.count_of_all(i % later.size_of_all);
  return samples;
}

BatchPlace LoaderCore::place_in(StepSoFar& step, const EpochBatches& epoch, int64_t batch) const {
  if (step.batches == 0)
    step.samples = samples_of_whole_step(epoch, batch);
  const int64_t samples = step.samples;
  const bool is_last = ++step.batches == options().accumulate;
  if (is_last)
    step = {};
  return place_in_step(epoch, batch, samples, is_last);
}

// After an epoch's last batch training is at the beginning of the next.
void LoaderCore::note_batch(const EpochBatches& epoch,
                            int64_t batch,
                            int64_t samples,
                            const BatchPlace& place) {
  ++stats_.batches;
  stats_.samples += samples;
  if (c10::GradMode::is_enabled())
    note_samples(samples);  // those that are trained on
  step_ended_ = place.last;
  if (!place.last)
    return;
  const bool ends_epoch = batch + 1 == epoch.size;
  position_.epoch = ends_epoch ? epoch.epoch + 1 : epoch.epoch;
  position_.consumed = ends_epoch ? 0 : epoch.consumed_after(batch);
  ++position_.step;
  position_.samples += place.samples_of_step;
}

void LoaderCore::note_stall(std::chrono::nanoseconds stall) {
  stats_.seconds_stalled += std::chrono::duration<double>(stall).count();
}

// An epoch without batches is refused only where it is whole: behind a restored position nothing
// may be left of it.
void LoaderCore::check_not_empty(const EpochBatches& epoch) const {
  if (epoch.size == 0 && position_.consumed == 0) {
    throw failed_precondition(
        "data loader: expected an epoch with at least 1 batch of this rank, got none of ",
        plural(position_.dataset_size, "sample"),
        " for ",
        epoch.ranks,
        " ranks; use a smaller batch size or fewer ranks, or turn drop_last off");
  }
}

void LoaderCore::end_epoch(const EpochBatches& epoch) {
  check_not_empty(epoch);
  position_.epoch = epoch.epoch + 1;
  position_.consumed = 0;
}

// A rank with fewer batches would go on to the next epoch while others still average gradients.
void LoaderCore::check_even(const EpochBatches& epoch, int64_t steps) const {
  const int64_t least = epoch.size_of_least.value_or(epoch.size_of_all);
  const bool all_have_them =
      least == epoch.size_of_all || (steps >= 0 && steps <= least / options().accumulate);
  if (all_have_them || !c10::GradMode::is_enabled() || UnevenInputs::allowed())
    return;
  throw failed_precondition(
      "data loader: expected as many batches on every rank, got ",
      epoch.size_of_all,
      " on some and ",
      least,
      " on others in epoch ",
      epoch.epoch,
      ": ranks would average gradients of different epochs; train with pad = true or "
      "drop_last, "
      "inside of "
      "DistributedDataParallel::join(), or evaluate under torch::NoGradGuard");
}

// A loop over steps() may end in the middle of an epoch; a loop over one epoch then continues
// there.
void LoaderCore::begin_epoch() {
  if (std::exchange(within_steps_, false))
    go_on_after_steps();
}

void LoaderCore::begin_steps() {
  if (std::exchange(within_steps_, true))
    return go_on_after_steps();
  go_on();
}

// A program may have set the epoch in whose middle the steps have ended.
void LoaderCore::go_on_after_steps() {
  if (sampler_->started() || sampler_->epoch() == position_.epoch)
    sampler_->set_epoch(position_.epoch, position_.consumed, position_.dataset_size);
}

// Inside of join() ranks may have as many as they like.
bool LoaderCore::is_loop_compared(int64_t ranks) {
  const bool is_compared =
      !options().undivided && c10::GradMode::is_enabled() && !UnevenInputs::allowed();
  if (is_compared && number_ == 0)
    number_ = OwnLoaders::number_stream(ranks);
  return is_compared;
}

LoopStart LoaderCore::enter_epoch(const EpochBatches& epoch) {
  return {.loop = is_loop_compared(epoch.ranks) ? ++loops_ : 0, .step = position_.step};
}

void LoaderCore::enter_steps(int64_t ranks, int64_t until) {
  if (is_loop_compared(ranks))
    OwnLoaders::check_end({.stream = number_,
                           .places = ++step_loops_,
                           .batches = until,
                           .ranks = ranks,
                           .of_dataset = true,
                           .of_steps = true});
}

// A job that stops keeps its place, since it is to resume there. A sampler that was moved keeps its
// own place too.
void LoaderCore::leave_epoch(const EpochBatches& epoch, const LoopStart& start) {
  const bool is_elsewhere = !sampler_->started() || sampler_->epoch() != epoch.epoch;
  if (is_elsewhere || OwnLoaders::job_stops())
    return;
  if (start.loop > 0)
    OwnLoaders::check_end({.stream = number_,
                           .places = start.loop,
                           .epoch = epoch.epoch,
                           .batches = position_.step - start.step,
                           .ranks = epoch.ranks,
                           .of_dataset = true});
  position_.epoch = epoch.epoch + 1;
  position_.consumed = 0;
}

// A sampler that has not started is where it was set. The training position decides after a start
// within steps(), and the next epoch follows otherwise.
int64_t LoaderCore::epoch() const {
  if (!sampler_->started())
    return sampler_->epoch();
  return within_steps_ ? position_.epoch : sampler_->epoch() + 1;
}

void LoaderCore::go_on() {
  if (sampler_->started())
    sampler_->set_epoch(position_.epoch, position_.consumed, position_.dataset_size);
}

void LoaderCore::set_epoch(int64_t epoch) {
  const bool goes_on = epoch == position_.epoch && position_.consumed > 0 && !sampler_->started();
  if (!goes_on)
    sampler_->set_epoch(epoch);
}

// An epoch can continue only in the order in which it began, which another size changes too.
void LoaderCore::restore(const DataPosition& position) {
  const int64_t size = position_.dataset_size;
  const int64_t order = position_.order;
  const bool has_other_size = position.dataset_size != 0 && position.dataset_size != size;
  if (position.consumed > 0 && has_other_size) {
    throw failed_precondition("data loader: expected the data set of ",
                              plural(position.dataset_size, "sample"),
                              ", of which epoch ",
                              position.epoch,
                              " has used ",
                              position.consumed,
                              ", got one of ",
                              size,
                              "; give that data set, or begin an epoch anew");
  }
  if (position.consumed > 0 && position.order != 0 && position.order != order) {
    throw failed_precondition(
        "data loader: expected the order and the seed with which epoch ",
        position.epoch,
        " began (",
        position.consumed,
        " of its samples are used), got others; give those, or begin an epoch anew");
  }
  sampler_->set_epoch(position.epoch, position.consumed, position.dataset_size);
  if (has_other_size) {
    log_warning("data loader: training began on ",
                plural(position.dataset_size, "sample"),
                ", and the data set now has ",
                size,
                ": epochs have other samples from now on");
  }
  position_ = {position.epoch, position.consumed, size, position.step, order, position.samples};
}

LoaderStats LoaderCore::stats() const {
  LoaderStats stats = stats_;
  stats.bad_samples = shared_->bad.count();
  return stats;
}

// A weight of 1 changes nothing, and without gradients nobody trains, so neither must be read.
void check_weight_read(const StepWeight& weight, int64_t batch) {
  if (weight.is_read() || weight.unread() == 1 || !c10::GradMode::is_enabled())
    return;
  throw failed_precondition("data loader: expected the loss of batch ",
                            batch,
                            " to be multiplied with batch.weight, ",
                            weight.unread(),
                            ", got a batch whose weight nobody has read; write (loss * "
                            "batch.weight).backward(), evaluate under "
                            "torch::NoGradGuard, or set check_weight = false");
}

// Called in a handler: the error that is being handled becomes the cause.
void fail_within(const std::string& where, ErrorCode code) {
  std::string why;
  try {
    throw;
  } catch (const Error& error) {
    code = error.code();
    why = error.what();
  } catch (const std::bad_alloc&) {
    code = ErrorCode::unavailable;
    why = "out of memory";
  } catch (...) {
    why = text_of_current_exception();
  }
  std::throw_with_nested(Error(code, cat(where, ": ", why)));
}

void fail_loading(const std::string& what) {
  fail_within(cat("data loader: ", what), ErrorCode::backend_failed);
}

void fail_sample(int64_t sample, const WorkerPlace& place) {
  fail_loading(cat("sample ", sample, worker_text(place)));
}

namespace {

std::string batch_text(const Int64s& samples, const WorkerPlace& place) {
  return cat("batch of samples ",
             samples.empty() ? "" : cat(samples.front(), " … ", samples.back()),
             worker_text(place));
}

}  // namespace

void fail_batch(const Int64s& samples, const WorkerPlace& place) {
  fail_loading(batch_text(samples, place));
}

void fail_empty_batch(const Int64s& samples, int64_t tried, const WorkerPlace& place) {
  throw invalid_argument("data loader: ",
                         batch_text(samples, place),
                         ": expected a sample that can be read, got none of ",
                         tried,
                         " from there on; turn skip_bad off to see the error of the first one");
}

// The caller is in a handler. A LibTorch error may have several lines, of which the first says what
// is wrong.
std::string text_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return split(error.what_without_backtrace(), '\n')[0];
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace muster
