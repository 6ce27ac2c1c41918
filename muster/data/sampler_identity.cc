#include "muster/data/sampler_identity.h"

#include <string_view>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr std::array<const char*, 13> kFields = {"num_replicas", "rank",      "seed",       "epoch", "length",
                                                 "shuffle",      "drop_last", "consumed",   "pad",   "order",
                                                 "global_batch", "share",     "share_begin"};
constexpr std::array<bool, 13> kFlag = {false, false, false, false, false, true, true, false, true};
constexpr std::array<bool, 13> kHidden = {false, false, false, false, false, false, false, false, true, true};
constexpr size_t kFirstOfShares = 10;
constexpr std::array<bool, 13> kOwn = {false, true,  false, false, false, false, false,
                                       false, false, false, false, true,  true};  // differs from rank to rank

}  // namespace

SamplerIdentity::Values SamplerIdentity::values() const {
  return {num_replicas, rank,        seed,  epoch,        length, shuffle ? 1 : 0, drop_last ? 1 : 0,
          consumed,     pad ? 1 : 0, order, global_batch, share,  share_begin};
}

SamplerIdentity SamplerIdentity::from_values(const Values& values) {
  return {values[0], values[1],      values[2], values[3],  values[4],  values[5] != 0, values[6] != 0,
          values[7], values[8] != 0, values[9], values[10], values[11], values[12]};
}

std::string to_string(const SamplerIdentity& identity) {
  const auto values = identity.values();
  std::vector<std::string> parts;
  const size_t shown = identity.global_batch > 0 ? values.size() : kFirstOfShares;
  for (size_t i = 0; i < shown; ++i) {
    if (kHidden[i]) continue;
    parts.push_back(kFlag[i] ? cat(kFields[i], "=", values[i] != 0) : cat(kFields[i], "=", values[i]));
  }
  if (!identity.pad) parts.push_back("pad=false");
  return join(parts, " ");
}

void check_samplers_agree(const std::vector<SamplerIdentity>& by_rank) {
  int64_t taken = 0;  // of the global batch, by the ranks before
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto first = by_rank[0].values();
    const auto mine = by_rank[rank].values();
    for (size_t field = 0; field < mine.size(); ++field) {
      if (kOwn[field] || mine[field] == first[field]) continue;
      const bool is_order = std::string_view(kFields[field]) == "order";
      const std::string values =
          is_order ? cat("two (numbers or weights of samples differ) on rank 0 and rank ", rank)
                   : cat(first[field], " on rank 0 and ", mine[field], " on rank ", rank);
      throw Error(ErrorCode::invalid_argument,
                  cat("sampler: expected the same ", kFields[field], " on every rank, got ", values,
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

}  // namespace muster
