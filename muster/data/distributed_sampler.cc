#include "muster/data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr std::array<const char*, 11> kFields = {"num_replicas", "rank",    "seed",       "epoch",
                                                 "length",       "shuffle", "drop_last",  "consumed",
                                                 "global_batch", "share",   "share_begin"};
constexpr size_t kFirstOfShares = 8;
constexpr std::array<bool, 11> kOwn = {false, true,  false, false, false, false,
                                       false, false, false, true,  true};  // differs from rank to rank

// `total` in proportion to `shares`, by largest remainder, each part at least 1.
std::vector<int64_t> divide(int64_t total, const std::vector<int64_t>& shares) {
  const int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::vector<int64_t> parts;
  std::vector<std::pair<int64_t, size_t>> by_remainder;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto exact = static_cast<__int128>(total) * shares[i];
    parts.push_back(static_cast<int64_t>(exact / sum));
    by_remainder.emplace_back(-static_cast<int64_t>(exact % sum), i);
  }
  std::sort(by_remainder.begin(), by_remainder.end());
  int64_t rest = total - std::accumulate(parts.begin(), parts.end(), int64_t{0});
  for (size_t i = 0; rest > 0; ++i, --rest) ++parts[by_remainder[i].second];
  for (int64_t& part : parts) {
    if (part > 0) continue;
    part = 1;
    --*std::max_element(parts.begin(), parts.end());
  }
  return parts;
}

// The order of the whole data set in this epoch, the same on every rank.
at::Tensor epoch_order(int64_t length, uint64_t seed) {
  return at::randperm(length, at::detail::createCPUGenerator(seed), at::kLong);
}

}  // namespace

SamplerIdentity::Values SamplerIdentity::values() const {
  return {num_replicas,      rank,     seed,         epoch, length,     shuffle ? 1 : 0,
          drop_last ? 1 : 0, consumed, global_batch, share, share_begin};
}

SamplerIdentity SamplerIdentity::from_values(const Values& values) {
  return {values[0],      values[1], values[2], values[3], values[4], values[5] != 0,
          values[6] != 0, values[7], values[8], values[9], values[10]};
}

std::string to_string(const SamplerIdentity& identity) {
  const auto values = identity.values();
  std::vector<std::string> parts;
  const size_t shown = identity.global_batch > 0 ? values.size() : kFirstOfShares;
  for (size_t i = 0; i < shown; ++i) {
    const bool flag = i == 5 || i == 6;
    parts.push_back(flag ? cat(kFields[i], "=", values[i] != 0) : cat(kFields[i], "=", values[i]));
  }
  return join(parts, " ");
}

void check_samplers_agree(const std::vector<SamplerIdentity>& by_rank) {
  int64_t taken = 0;  // of the global batch, by the ranks before
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto first = by_rank[0].values();
    const auto mine = by_rank[rank].values();
    for (size_t field = 0; field < mine.size(); ++field) {
      if (kOwn[field] || mine[field] == first[field]) continue;
      throw Error(ErrorCode::invalid_argument,
                  cat("sampler: expected the same ", kFields[field], " on every rank, got ", first[field],
                      " on rank 0 and ", mine[field], " on rank ", rank,
                      "; give every rank's DistributedSampler the same arguments and the same set_epoch"));
    }
    if (by_rank[rank].rank != static_cast<int64_t>(rank)) {
      throw Error(ErrorCode::invalid_argument,
                  cat("sampler: expected rank=", rank, " in the sampler of rank ", rank, ", got rank=",
                      by_rank[rank].rank, "; two ranks would train on the same samples: pass the rank"));
    }
    if (by_rank[rank].share_begin != taken) {
      throw Error(ErrorCode::invalid_argument,
                  cat("sampler: expected the same shares on every rank, got rank ", rank, "'s to begin at ",
                      by_rank[rank].share_begin, " of the global batch, where those before it end at ", taken,
                      "; give every rank the same list"));
    }
    taken += by_rank[rank].share;
  }
  if (!by_rank.empty() && by_rank[0].num_replicas != static_cast<int64_t>(by_rank.size())) {
    throw Error(ErrorCode::invalid_argument,
                cat("sampler: expected num_replicas=", by_rank.size(), ", one for each rank, got ",
                    by_rank[0].num_replicas, "; pass the group's size"));
  }
  if (!by_rank.empty() && taken != by_rank[0].global_batch) {
    throw Error(ErrorCode::invalid_argument,
                cat("sampler: expected shares that sum to the global batch of ", by_rank[0].global_batch,
                    ", got ", taken, " over all ranks; give every rank the same list"));
  }
}

DistributedSampler::DistributedSampler(int64_t length, const SamplerOptions& options)
    : length_(length), options_(options) {
  if (options.num_replicas < 1) {
    throw Error(ErrorCode::invalid_argument, cat("sampler: expected at least 1 replica, got ",
                                                 options.num_replicas, "; pass the group's size"));
  }
  if (options.rank < 0 || options.rank >= options.num_replicas) {
    throw Error(ErrorCode::invalid_argument,
                cat("sampler: expected a rank from 0 to ", options.num_replicas - 1, ", got ", options.rank,
                    "; pass this rank's own number"));
  }
  if (length < 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("sampler: expected a data set with at least 1 sample, got length ", length,
                    "; check what was loaded"));
  }
  const bool right =
      std::all_of(options.shares.begin(), options.shares.end(), [](int64_t n) { return n >= 1; });
  if (!options.shares.empty() && (!right || std::ssize(options.shares) != options.num_replicas)) {
    throw Error(ErrorCode::invalid_argument,
                cat("sampler: expected ", options.num_replicas, " shares of at least 1, one a rank, got [",
                    join(options.shares, ", "), "]; leave them out for equal ones"));
  }
  global_batch_ = std::accumulate(options.shares.begin(), options.shares.end(), int64_t{0});
  set_epoch(0);
  if (options.drop_last && length < std::max<int64_t>(options.num_replicas, global_batch_)) {
    log(LogLevel::warn, cat("sampler: drop_last leaves every rank without samples (", length, " for ",
                            options.num_replicas, " ranks); turn drop_last off or use fewer ranks"));
  }
}

void DistributedSampler::check_place(int64_t epoch, int64_t consumed, int64_t consumed_of) const {
  if (epoch < 0 || consumed < 0 || consumed_of < 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("sampler: expected epoch and consumed samples of 0 or more, got epoch ", epoch, ", ",
                    consumed, " of ", consumed_of, "; pass the epoch's number"));
  }
  if (consumed > 0 && consumed_of > 0 && consumed_of != length_) {
    throw Error(ErrorCode::failed_precondition,
                cat("sampler: expected the data set of ", consumed_of, " samples, of which epoch ", epoch,
                    " has used ", consumed, ", got one of ", length_,
                    "; give that data set, or begin the epoch anew with 0 used"));
  }
  const int64_t most_repeated = std::max<int64_t>(options_.num_replicas, global_batch_);
  if (consumed_of == 0 && consumed - length_ >= most_repeated) {
    log(LogLevel::warn,
        cat("sampler: epoch ", epoch, " is said to have used ", consumed, " samples, and the data set has ",
            length_, ": nothing of the epoch is left; is it the data set that training began with?"));
  }
}

void DistributedSampler::set_epoch(int64_t epoch, int64_t consumed, int64_t consumed_of) {
  check_place(epoch, consumed, consumed_of);
  epoch_ = epoch;
  consumed_ = consumed;
  epoch_started_ = false;
  last_parts_.clear();
  const int64_t rest = global_batch_ > 0 ? left() % global_batch_ : 0;
  if (rest > 0 && !options_.drop_last) {
    last_parts_ = divide(std::max<int64_t>(rest, options_.num_replicas), options_.shares);
  }
}

// Samples of this epoch that no rank has used.
int64_t DistributedSampler::left() const {
  return std::max<int64_t>(0, length_ - consumed_);
}

int64_t DistributedSampler::full_batches() const {
  return left() / global_batch_;
}

const std::vector<int64_t>& DistributedSampler::parts_of(int64_t batch) const {
  if (global_batch_ == 0) {
    throw Error(ErrorCode::failed_precondition,
                "sampler: expected shares, got none: without them batches may have any size");
  }
  static const std::vector<int64_t> kNone;
  if (batch == full_batches()) return last_parts_;
  return batch < full_batches() ? options_.shares : kNone;
}

int64_t DistributedSampler::batch_samples(int64_t batch) const {
  const auto& parts = parts_of(batch);
  return parts.empty() ? 0 : parts[static_cast<size_t>(options_.rank)];
}

int64_t DistributedSampler::global_samples(int64_t batch) const {
  const auto& parts = parts_of(batch);
  return std::accumulate(parts.begin(), parts.end(), int64_t{0});
}

int64_t DistributedSampler::num_samples() const {
  if (global_batch_ > 0) {
    return full_batches() * options_.shares[static_cast<size_t>(options_.rank)] +
           batch_samples(full_batches());
  }
  const int64_t replicas = options_.num_replicas;
  return options_.drop_last ? left() / replicas : left() / replicas + (left() % replicas != 0 ? 1 : 0);
}

// This rank's places in the epoch's order. As in PyTorch, what is missing to a multiple of the ranks is
// filled from the order's beginning, as often as needed.
std::vector<int64_t> DistributedSampler::positions() const {
  std::vector<int64_t> mine;
  mine.reserve(static_cast<size_t>(num_samples()));
  if (global_batch_ == 0) {
    for (int64_t i = 0; i < num_samples(); ++i)
      mine.push_back(consumed_ + options_.rank + i * options_.num_replicas);
    return mine;
  }
  const auto rank = static_cast<std::ptrdiff_t>(options_.rank);
  for (int64_t batch = 0; std::ssize(mine) < num_samples(); ++batch) {
    const auto& parts = parts_of(batch);
    const int64_t begin =
        consumed_ + batch * global_batch_ + std::accumulate(parts.begin(), parts.begin() + rank, int64_t{0});
    for (int64_t i = 0; i < batch_samples(batch); ++i) mine.push_back(begin + i);
  }
  return mine;
}

std::vector<int64_t> DistributedSampler::indices() {
  if (check_) std::exchange(check_, nullptr)(identity());
  if (epoch_started_ && options_.shuffle && !epoch_repeated_) {
    epoch_repeated_ = true;
    log(LogLevel::warn,
        cat("sampler: epoch ", epoch_,
            " starts again with the same order; call sampler.set_epoch(epoch) before each epoch"));
  }
  epoch_started_ = true;

  std::vector<int64_t> mine = positions();
  for (int64_t& position : mine) position %= length_;
  if (!options_.shuffle) return mine;
  const at::Tensor order =
      epoch_order(length_, static_cast<uint64_t>(options_.seed) + static_cast<uint64_t>(epoch_));
  const int64_t* shuffled = order.const_data_ptr<int64_t>();
  for (int64_t& index : mine) index = shuffled[index];
  return mine;
}

SamplerIdentity DistributedSampler::identity() const {
  SamplerIdentity identity{options_.num_replicas, options_.rank,      options_.seed, epoch_, length_,
                           options_.shuffle,      options_.drop_last, consumed_};
  if (global_batch_ > 0) {
    const auto rank = static_cast<std::ptrdiff_t>(options_.rank);
    identity.global_batch = global_batch_;
    identity.share = options_.shares[static_cast<size_t>(rank)];
    identity.share_begin =
        std::accumulate(options_.shares.begin(), options_.shares.begin() + rank, int64_t{0});
  }
  return identity;
}

}  // namespace muster
