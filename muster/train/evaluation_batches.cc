// The number of samples is added over the ranks: it says whether each was counted once.
#include "muster/train/evaluation_batches.h"

#include <ATen/ops/tensor.h>

#include <iterator>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/peers.h"
#include "muster/data/mix.h"

namespace muster::evaluation {

namespace {

std::string with_bad(int64_t counted, int64_t bad) {
  return bad > 0 ? cat(counted, " and ", bad, " that cannot be read") : cat(counted);
}

// Added up over a dataset. A sum of 2^31 of them fits.
int64_t hash_of_sample(int64_t index) {
  return static_cast<int64_t>(mixed(static_cast<uint64_t>(index)) >> 32);
}

}  // namespace

void refuse_samples(const char* owner, int64_t dataset_size, const std::string& got, bool repeats) {
  const char* const wanted = repeats
                                 ? "repeats none: sampling with pad = false, a .rank for each "
                                   "rank, and no weights"
                                 : "leaves out none: no drop_last, in the loader or its sampler";
  throw invalid_argument(owner,
                         ": expected each of ",
                         dataset_size,
                         " samples once, got ",
                         got,
                         " on all ranks together; give a loader that ",
                         wanted);
}

void SampleCount::add(int64_t samples, const Int64s& indices) {
  samples_ += samples;
  numbered_ += std::ssize(indices);
  for (const int64_t index : indices)
    hash_ += hash_of_sample(index);
}

void SampleCount::check(ProcessGroup& group, int64_t dataset_size, int64_t bad) const {
  Tensor all = at::tensor({samples_, bad, numbered_, hash_}, kLong);
  group.all_reduce(all);
  const auto counted = all[0].item<int64_t>(), unread = all[1].item<int64_t>();
  if (counted + unread != dataset_size)
    refuse_samples(
        "evaluate", dataset_size, with_bad(counted, unread), counted + unread > dataset_size);
  if (all[2].item<int64_t>() != dataset_size)
    return;
  int64_t hash = all[3].item<int64_t>();
  for (const int64_t index : indices_below(dataset_size))
    hash -= hash_of_sample(index);
  if (hash != 0)
    refuse_samples("evaluate", dataset_size, cat(counted, ", some of them more than once"), true);
}

void check_stream(ProcessGroup& group,
                  const StreamLoaderOptions& options,
                  const StreamPosition& position) {
  constexpr Refusal refuse{"evaluate"};
  Peers(group).together([&] {
    const bool is_divided = options.rank == group.rank() && options.ranks == group.size();
    if (!is_divided && !options.undivided)
      refuse(cat("a stream's part ", group.rank(), " of ", group.size()),
             cat("part ", options.rank, " of ", options.ranks),
             "make the loader by ctx.loader, or say undivided if each rank has its own data");
    if (options.drop_last)
      refuse("a loader that leaves out no example", "one with drop_last", "leave that out");
    if (position.batch > 0)
      refuse("a stream at the beginning of an epoch",
             cat("one after ", position.examples, " of its examples"),
             "go through the rest first, or make another loader");
  });
}

bool any_rank(ProcessGroup& group, bool here) {
  Tensor says = at::tensor({here ? 1 : 0}, kLong);
  group.all_reduce(says, ReduceOp::max);
  return says.item<int64_t>() != 0;
}

void check_has_batch(ProcessGroup& group, bool here) {
  if (!any_rank(group, !here))
    return;
  throw failed_precondition(
      "evaluate: expected an example on every rank, since the ranks have the model "
      "together, got a rank without any; take whole_parameters() and pass the module "
      "itself, or give each rank an example");
}

}  // namespace muster::evaluation
