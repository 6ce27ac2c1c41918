// A sampler describes itself in bytes, which the ranks gather; each rank then compares all of them,
// so that the error is the same on every rank.
#include "muster/run/sampler_checks.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

std::vector<SamplerIdentity> gather_identities(ProcessGroup& group,
                                               const SamplerIdentity& identity) {
  return mapped(group.all_gather_bytes(identity.to_bytes(), "samplers"),
                [](const auto& bytes) { return SamplerIdentity::from_bytes(bytes); });
}

// Returns the batches of the first rank that has come to this end: it has the fewest where ranks
// wait for each other in each step. The last rank to come takes the keys away, or a long job's
// store would grow with each epoch.
std::string first_to_end(const ProcessGroup& group, const StreamEnd& end) {
  const std::string where = end.of_steps ? "steps" : cat(end.epoch);
  const auto key = cat("stream_end/", end.stream, "/", end.places, "/", where);
  const auto come = key + "/come";
  const auto& store = group.store();
  std::string first = store->compareSet(key, std::string(), cat(end.batches));
  if (store->add(come, 1) == group.size()) {
    store->deleteKey(key);
    store->deleteKey(come);
  }
  return first;
}

// What each rank does after so many steps, another may still be in the loop.
std::string uneven_steps_warning(const StreamEnd& end, const std::string& first) {
  return cat(end.of_dataset ? "data" : "stream",
             " loader: expected a loop to the same step on every rank, got steps(",
             end.batches,
             ") here and steps(",
             first,
             ") on another rank; if this loop trains with averaged gradients, ranks wait for each "
             "other after the lesser, or average those of two loops: give all ranks one number; "
             "leave it where ranks average nothing");
}

// A data set is divided evenly: its loaders differ, or a loop was left.
std::string uneven_ends_warning(const StreamEnd& end, const std::string& first) {
  const char* const next =
      end.of_dataset ? "give all ranks one batch_size and accumulate (or shares of a global "
                       "batch), and leave an epoch on all ranks together"
                     : "loop over steps(), of which all ranks have as many, or train inside of "
                       "DistributedDataParallel::join()";
  return cat(end.of_dataset ? "data loader: expected as many steps on every rank, got "
                            : "stream loader: expected as many batches on every rank, got ",
             end.batches,
             " here and ",
             first,
             " on another rank in epoch ",
             end.epoch,
             "; if this loop trains with averaged gradients, they are of different epochs now: ",
             next,
             "; leave it where ranks average nothing");
}

}  // namespace

SamplerCheck check_of_samplers(ProcessGroup group) {
  return [group = std::move(group)](const SamplerIdentity& identity) mutable {
    check_samplers_agree(gather_identities(group, identity));
  };
}

// A program may mean each rank to train on data of its own, so only a warning tells of it.
SamplerCheck check_of_own_loaders(ProcessGroup group) {
  return [group = std::move(group), said = false](const SamplerIdentity& identity) mutable {
    if (group.size() == 1)
      return;
    if (identity.num_replicas == group.size())
      return check_of_samplers(group)(identity);
    if (identity.num_replicas > 1 || group.rank() != 0 || std::exchange(said, true))
      return;
    log_warning(
        "data loader: each of the ",
        group.size(),
        " ranks trains on all samples of ",
        identity.order,
        ", since the loader was made without rank and ranks; divide them by ctx.loader, or set "
        ".undivided = true where each rank has data of its own, or is to see all");
  };
}

std::function<void(const StreamEnd&)> check_of_stream_ends(ProcessGroup group) {
  return [group = std::move(group), said = false, is_alone = false](const StreamEnd& end) mutable {
    if (is_alone || group.size() == 1 || end.ranks != group.size())
      return;
    try {
      const auto first = first_to_end(group, end);
      const bool differs = first != cat(end.batches);
      if (!differs || std::exchange(said, true) || group.store()->add("stream_end/said", 1) > 1)
        return;
      log_warning(end.of_steps ? uneven_steps_warning(end, first)
                               : uneven_ends_warning(end, first));
    } catch (const std::exception&) {
      is_alone = true;  // whoever serves the store has gone
    }
  };
}

SamplerCheck check_of_mesh_samplers(ProcessGroup all, int64_t replicas) {
  return [all = std::move(all), replicas](const SamplerIdentity& identity) mutable {
    auto by_rank = gather_identities(all, identity);
    // Each rank has its place in its own group. The places of the job take their part, since they
    // are what is not compared.
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      by_rank[rank].rank = static_cast<int64_t>(rank);
      if (by_rank[rank].num_replicas == replicas)
        by_rank[rank].num_replicas = all.size();
    }
    check_samplers_agree(by_rank);
  };
}

}  // namespace muster
