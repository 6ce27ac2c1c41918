// Each rank sends a sample of each parameter, some bytes, to all.
#include "muster/checkpoint/training/other_values.h"

#include "muster/base/mapped.h"
#include "muster/checkpoint/training/tensor_bytes.h"
#include "muster/ddp/value_sample.h"

namespace muster {

std::optional<OtherValues> other_values_than_rank0(ProcessGroup& group, const Module& model) {
  const auto named = model.named_parameters();
  const auto mine =
      awaited_samples_of(mapped(named.items(), [](const auto& item) { return item.value(); }));
  const auto by_rank = group.all_gather_bytes(text_of_values(mine), "samples of parameters");
  // Only what all ranks have got decides: a rank whose own model differs must find the same.
  const auto first = values_in<ValueSample>(by_rank[0]);
  for (int rank = 1; rank < group.size(); ++rank) {
    const auto theirs = values_in<ValueSample>(by_rank[static_cast<size_t>(rank)]);
    for (size_t i = 0; theirs.size() == first.size() && i < first.size(); ++i)
      if (first[i].differs_from(theirs[i]))
        return OtherValues{.parameter = i < named.size() ? named[i].key() : std::string(),
                           .rank = group.job_rank(rank)};
  }
  return std::nullopt;
}

}  // namespace muster
