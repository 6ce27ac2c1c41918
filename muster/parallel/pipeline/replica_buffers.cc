// Replicas compare the hashes of their buffers' values once, before the first ones are taken: after
// a step's forwards they differ anyway.
#include "muster/parallel/pipeline/replica_buffers.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"
#include "muster/ddp/broadcast_values.h"
#include "muster/ddp/replica_check.h"
#include "muster/parallel/pipeline/messages.h"

namespace muster {

namespace {

using NamedBuffers = std::vector<std::pair<std::string, Tensor>>;

// A buffer that several stages share comes once. They have versions of their own here, so that a
// graph which has saved one stays valid.
NamedBuffers buffers_of(const PipelineStages& stages) {
  std::set<const void*> seen;
  NamedBuffers found;
  for (const PipelineStage& stage : stages)
    for (const auto& item : stage.module->named_buffers())
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
        found.emplace_back(item.key(), item.value().variable_data());
  return found;
}

}  // namespace

Terms terms_of_buffers(const PipelineStages& stages) {
  return mapped(buffers_of(stages), [](const auto& buffer) {
    const auto& [name, tensor] = buffer;
    return Term{
        .name = cat("buffer '", name, "'"),
        .value = cat(tensor_text(tensor),
                     " on ",
                     c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true)),
        .otherwise =
            ", or set .broadcast_buffers = false, where each is to have buffers of its own"};
  });
}

// The ranks of a stage have as many hashes each, since the terms were equal.
void warn_of_other_buffers(const PipelineStages& stages, ProcessGroup& replicas) {
  const NamedBuffers buffers = buffers_of(stages);
  if (buffers.empty() || replicas.size() == 1)
    return;
  const Int64s mine =
      mapped(buffers, [](const auto& buffer) { return hash_of_bits(buffer.second); });
  const auto by_rank = mapped(replicas.all_gather_bytes(join(mine, ","), "of a pipeline's buffers"),
                              [](const std::string& hashes) { return split(hashes, ','); });
  if (replicas.rank() > 0)
    return;
  for (int rank = 1; rank < replicas.size(); ++rank) {
    for (const size_t i : indices_of(buffers)) {
      if (by_rank[rank][i] == by_rank[0][i])
        continue;
      return log_warning(
          "pipeline: expected the same values of buffers on all replicas, got others of '",
          buffers[i].first,
          "' on rank ",
          replicas.job_rank(rank),
          ": all take those of rank ",
          replicas.job_rank(0),
          "; set .broadcast_buffers = false where each is to have its own, as the positions "
          "of its part of a sequence");
    }
  }
}

void take_first_buffers(const PipelineStages& stages, ProcessGroup& replicas) {
  broadcast_values(mapped(buffers_of(stages), &NamedBuffers::value_type::second), replicas, 0);
}

}  // namespace muster
