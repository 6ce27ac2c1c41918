#include "muster/data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr std::array<const char*, 8> kFields = {"num_replicas", "rank",    "seed",      "epoch",
                                                "length",       "shuffle", "drop_last", "consumed"};
constexpr size_t kRankField = 1;

// The order of the whole data set in this epoch, the same on every rank.
at::Tensor epoch_order(int64_t length, uint64_t seed) {
  return at::randperm(length, at::detail::createCPUGenerator(seed), at::kLong);
}

}  // namespace

SamplerIdentity::Values SamplerIdentity::values() const {
  return {num_replicas, rank, seed, epoch, length, shuffle ? 1 : 0, drop_last ? 1 : 0, consumed};
}

SamplerIdentity SamplerIdentity::from_values(const Values& values) {
  return {values[0], values[1], values[2], values[3], values[4], values[5] != 0, values[6] != 0, values[7]};
}

std::string to_string(const SamplerIdentity& identity) {
  const auto values = identity.values();
  std::vector<std::string> parts;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool flag = i == 5 || i == 6;
    parts.push_back(flag ? cat(kFields[i], "=", values[i] != 0) : cat(kFields[i], "=", values[i]));
  }
  return join(parts, " ");
}

void check_samplers_agree(const std::vector<SamplerIdentity>& by_rank) {
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto first = by_rank[0].values();
    const auto mine = by_rank[rank].values();
    for (size_t field = 0; field < mine.size(); ++field) {
      if (field == kRankField || mine[field] == first[field]) continue;
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
  }
  if (!by_rank.empty() && by_rank[0].num_replicas != static_cast<int64_t>(by_rank.size())) {
    throw Error(ErrorCode::invalid_argument,
                cat("sampler: expected num_replicas=", by_rank.size(), ", one for each rank, got ",
                    by_rank[0].num_replicas, "; pass the group's size"));
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
  if (options.drop_last && length < options.num_replicas) {
    log(LogLevel::warn, cat("sampler: drop_last leaves every rank without samples (", length, " for ",
                            options.num_replicas, " ranks); turn drop_last off or use fewer ranks"));
  }
}

void DistributedSampler::set_epoch(int64_t epoch, int64_t consumed) {
  if (epoch < 0 || consumed < 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("sampler: expected epoch and consumed samples of 0 or more, got epoch ", epoch, " and ",
                    consumed, "; pass the epoch's number"));
  }
  epoch_ = epoch;
  consumed_ = consumed;
  epoch_started_ = false;
}

int64_t DistributedSampler::num_samples() const {
  const int64_t left = std::max<int64_t>(0, length_ - consumed_);
  const int64_t replicas = options_.num_replicas;
  return options_.drop_last ? left / replicas : left / replicas + (left % replicas != 0 ? 1 : 0);
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

  // As in PyTorch, what is missing to a multiple of the ranks is filled from the order's beginning, as often
  // as needed.
  std::vector<int64_t> mine(static_cast<size_t>(num_samples()));
  at::Tensor order;
  const int64_t* shuffled = nullptr;
  if (options_.shuffle) {
    order = epoch_order(length_, static_cast<uint64_t>(options_.seed) + static_cast<uint64_t>(epoch_));
    shuffled = order.const_data_ptr<int64_t>();
  }
  int64_t position = consumed_ + options_.rank;
  for (auto& index : mine) {
    const int64_t at = position % length_;
    index = shuffled != nullptr ? shuffled[at] : at;
    position += options_.num_replicas;
  }
  return mine;
}

SamplerIdentity DistributedSampler::identity() const {
  return {options_.num_replicas, options_.rank,      options_.seed, epoch_, length_,
          options_.shuffle,      options_.drop_last, consumed_};
}

}  // namespace muster
