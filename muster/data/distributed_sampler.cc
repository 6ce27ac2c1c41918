// Says which samples of an epoch's order are this rank's. Without shares they are every
// num_replicas-th one, as in PyTorch. With shares each global batch is cut into consecutive parts,
// and a smaller last one in proportion (last_parts_). All of it is arithmetic on positions, so an
// epoch that was interrupted continues at `consumed` with any number of ranks.
#include "muster/data/distributed_sampler.h"

#include <algorithm>
#include <memory>
#include <span>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Divides `total` in proportion to `shares`, by largest remainder. Each part is at least `least`,
// which is 0 or 1; what that adds is taken from the largest part. The product may need more than 64
// bits.
Int64s divide(int64_t total, const Int64s& shares, int64_t least) {
  const int64_t sum = sum_of(shares);
  using Wide = __int128;
  Int64s parts;
  std::vector<std::pair<int64_t, size_t>> by_remainder;
  for (const size_t i : indices_of(shares)) {
    const Wide exact = Wide{total} * shares[i];
    parts.push_back(static_cast<int64_t>(exact / sum));
    by_remainder.emplace_back(-static_cast<int64_t>(exact % sum), i);
  }
  std::ranges::sort(by_remainder);
  int64_t rest = total - sum_of(parts);
  for (size_t i = 0; rest > 0; ++i, --rest)
    ++parts[by_remainder[i].second];
  for (int64_t& part : parts) {
    if (part >= least)
      continue;
    part = least;
    --*std::ranges::max_element(parts);
  }
  return parts;
}

}  // namespace

DistributedSampler::DistributedSampler(int64_t length, const SamplerOptions& options)
    : DistributedSampler(options.shuffle ? shuffled(length) : in_order(length), options) {}

DistributedSampler::DistributedSampler(SampleOrder order, const SamplerOptions& options)
    : order_(std::move(order)), length_(order_.samples), options_(options) {
  if (options.num_replicas < 1) {
    throw invalid_argument("sampler: expected at least 1 replica, got ",
                           options.num_replicas,
                           "; pass the group's size");
  }
  if (options.rank < 0 || options.rank >= options.num_replicas) {
    throw invalid_argument("sampler: expected a rank from 0 to ",
                           options.num_replicas - 1,
                           ", got ",
                           options.rank,
                           "; pass this rank's own number");
  }
  if (options.drop_last && !options.pad) {
    throw invalid_argument(
        "sampler: expected drop_last or pad = false, got both: one cuts the tail, the "
        "other keeps it; leave one out");
  }
  take_shares(options.shares);
  set_epoch(0, 0);
  if (options.drop_last && length_ < std::max<int64_t>(options.num_replicas, global_batch_)) {
    log_warning("sampler: drop_last leaves every rank without samples (",
                length_,
                " for ",
                options.num_replicas,
                " ranks); turn drop_last off or use fewer ranks");
  }
}

// Shares that are refused change nothing.
void DistributedSampler::take_shares(Int64s shares) {
  const bool are_shares = std::ssize(shares) == options_.num_replicas &&
                          all_of(shares, [](int64_t share) { return share >= 1; });
  if (!shares.empty() && !are_shares) {
    throw invalid_argument("sampler: expected ",
                           options_.num_replicas,
                           " shares of at least 1, one a rank, got [",
                           join(shares, ", "),
                           "]; leave them out for equal ones");
  }
  global_batch_ = sum_of(shares);
  options_.shares = std::move(shares);
}

// The epoch is set again at its place, since the parts of its last batch depend on the shares.
void DistributedSampler::set_shares(Int64s shares) {
  take_shares(std::move(shares));
  set_epoch(epoch_, consumed_);
}

// Padding may take a position beyond the end, by less than a batch of all ranks; more than that is
// worth a warning.
void DistributedSampler::check_place(int64_t epoch, int64_t consumed, int64_t consumed_of) const {
  if (epoch < 0 || consumed < 0 || consumed_of < 0) {
    throw invalid_argument("sampler: expected epoch and consumed samples of 0 or more, got epoch ",
                           epoch,
                           ", ",
                           consumed,
                           " of ",
                           consumed_of,
                           "; pass the epoch's number");
  }
  if (consumed > 0 && consumed_of > 0 && consumed_of != order_.dataset_size) {
    throw failed_precondition("sampler: expected the data set of ",
                              plural(consumed_of, "sample"),
                              ", of which epoch ",
                              epoch,
                              " has used ",
                              consumed,
                              ", got one of ",
                              order_.dataset_size,
                              "; give that data set, or begin the epoch anew with 0 used");
  }
  const int64_t most_repeated = std::max<int64_t>(options_.num_replicas, global_batch_);
  if (consumed_of == 0 && consumed - length_ >= most_repeated) {
    log_warning("sampler: the position says that epoch ",
                epoch,
                " has used ",
                plural(consumed, "sample"),
                ", but the data set has only ",
                length_,
                ", so nothing of the epoch is left; see whether training began with this data set");
  }
}

// A restored position survives a call with its own epoch, so a training loop may call this before
// each epoch without losing it.
void DistributedSampler::set_epoch(int64_t epoch) {
  const bool goes_on = epoch == epoch_ && consumed_ > 0 && !epoch_started_;
  if (!goes_on)
    set_epoch(epoch, 0);
}

void DistributedSampler::set_epoch(int64_t epoch, int64_t consumed, int64_t consumed_of) {
  check_place(epoch, consumed, consumed_of);
  epoch_ = epoch;
  consumed_ = consumed;
  epoch_started_ = false;
  last_parts_.clear();
  const int64_t rest = global_batch_ > 0 ? left() % global_batch_ : 0;
  if (rest == 0 || options_.drop_last)
    return;
  last_parts_ = options_.pad
                    ? divide(std::max<int64_t>(rest, options_.num_replicas), options_.shares, 1)
                    : divide(rest, options_.shares, 0);
}

// The samples of this epoch that no rank has used. A position may lie beyond the end, by padding.
int64_t DistributedSampler::left() const {
  return std::max<int64_t>(0, length_ - consumed_);
}

int64_t DistributedSampler::full_batches() const {
  return left() / global_batch_;
}

// The parts of a batch by rank; empty behind the last batch.
const Int64s& DistributedSampler::parts_of(int64_t batch) const {
  if (global_batch_ == 0) {
    throw failed_precondition(
        "sampler: expected shares, got none; set SamplerOptions::shares, since batches "
        "have no fixed parts without them");
  }
  static const Int64s kNone;
  if (batch == full_batches())
    return last_parts_;
  return batch < full_batches() ? options_.shares : kNone;
}

int64_t DistributedSampler::batch_samples(int64_t batch) const {
  const auto& parts = parts_of(batch);
  return parts.empty() ? 0 : parts[options_.rank];
}

int64_t DistributedSampler::global_samples(int64_t batch) const {
  const auto& parts = parts_of(batch);
  return sum_of(parts);
}

// A rank whose part of the last batch is 0 has a batch less than the others.
bool DistributedSampler::gives_all_the_rest() const {
  return !last_parts_.empty() && !contains(last_parts_, 0);
}

// Shares divide the last batch apart. The rest goes to the first ranks without them, or by padding
// to all.
int64_t DistributedSampler::num_samples() const {
  if (global_batch_ > 0)
    return full_batches() * options_.shares[options_.rank] + batch_samples(full_batches());
  const int64_t replicas = options_.num_replicas;
  const int64_t rest = left() % replicas;
  const int64_t ranks_with_more = options_.pad && rest > 0 ? replicas : rest;
  const bool has_more = !options_.drop_last && options_.rank < ranks_with_more;
  return left() / replicas + (has_more ? 1 : 0);
}

// The place, in the epoch's order, of this rank's sample `i`. PyTorch fills what is missing to a
// multiple of the ranks from the order's beginning, as often as needed; so does the modulo here.
int64_t DistributedSampler::position(int64_t i) const {
  if (global_batch_ == 0)
    return (consumed_ + options_.rank + i * options_.num_replicas) % length_;
  const int64_t share = options_.shares[options_.rank];
  const int64_t batch = std::min(i / share, full_batches());
  const auto& parts = parts_of(batch);
  const int64_t before = sum_of(std::span(parts).first(options_.rank));
  return (consumed_ + batch * global_batch_ + before + i - batch * share) % length_;
}

EpochSamples DistributedSampler::start() {
  if (check_)
    std::exchange(check_, nullptr)(identity());
  // One warning is enough: a shuffled epoch that repeats itself is rarely meant.
  if (epoch_started_ && order_.changes && !epoch_repeated_) {
    epoch_repeated_ = true;
    log_warning(
        "sampler: epoch ",
        epoch_,
        " starts again with the same order; call sampler.set_epoch(epoch) before each epoch");
  }
  epoch_started_ = true;
  // A copy: the epoch's samples stay as they are now, whatever set_epoch says later.
  auto places = std::make_shared<DistributedSampler>(*this);
  places->check_ = nullptr;
  return {.size = num_samples(),
          .sample = [places, order = order_when_needed(order_, options_.seed, epoch_)](
                        int64_t i) { return order(places->position(i)); },
          .position = [places](int64_t i) { return places->position(i); }};
}

// The call counts as a start of the epoch, and holds all of this rank's samples in memory.
Int64s DistributedSampler::indices() {
  const EpochSamples epoch = start();
  Int64s mine(epoch.size);
  for (const int64_t i : indices_below(epoch.size))
    mine[i] = epoch.sample(i);
  return mine;
}

SamplerIdentity DistributedSampler::identity() const {
  SamplerIdentity identity{.num_replicas = options_.num_replicas,
                           .rank = options_.rank,
                           .seed = options_.seed,
                           .epoch = epoch_,
                           .length = length_,
                           .shuffle = order_.changes,
                           .drop_last = options_.drop_last,
                           .consumed = consumed_,
                           .pad = options_.pad,
                           .order = data_ ? cat(order_.name, " of samples ", *data_) : order_.name};
  if (global_batch_ > 0) {
    const int rank = options_.rank;

    identity.global_batch = global_batch_;
    identity.share = options_.shares[rank];
    // The sum of the earlier ranks' shares shows whether all parts lie end to end, without sending
    // the whole list.
    identity.share_begin = sum_of(std::span(options_.shares).first(rank));
  }
  return identity;
}

}  // namespace muster
