#include "muster/parallel/pipeline/replica_buffers.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <map>
#include <set>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/parallel/pipeline/messages.h"

namespace muster {

namespace {

// A buffer that several stages share comes once. They have versions of their own here, so that a
// graph which has saved one stays valid.
std::map<at::ScalarType, std::vector<at::Tensor>> buffers_by_type(
    const std::vector<PipelineStage>& stages) {
  std::set<const void*> seen;
  std::map<at::ScalarType, std::vector<at::Tensor>> found;
  for (const PipelineStage& stage : stages)
    for (const at::Tensor& buffer : stage.module->buffers())
      if (buffer.defined() && buffer.numel() > 0 &&
          seen.insert(buffer.unsafeGetTensorImpl()).second)
        found[buffer.scalar_type()].push_back(buffer.variable_data());
  return found;
}

}  // namespace

std::vector<Term> terms_of_buffers(const std::vector<PipelineStage>& stages) {
  std::vector<Term> all;
  for (const PipelineStage& stage : stages)
    for (const auto& item : stage.module->named_buffers())
      if (item.value().defined())
        all.push_back(
            {.name = cat("buffer '", item.key(), "'"), .value = to_text(form_of(item.value()))});
  return all;
}

void take_first_buffers(const std::vector<PipelineStage>& stages, ProcessGroup& replicas) {
  if (replicas.size() == 1)
    return;
  const at::NoGradGuard no_grad;
  for (const auto& [type, buffers] : buffers_by_type(stages)) {
    const at::Tensor flat =
        at::cat(mapped(buffers, [](const at::Tensor& buffer) { return buffer.reshape({-1}); }));
    replicas.broadcast(flat, 0);
    if (replicas.rank() == 0)
      continue;
    int64_t at = 0;
    for (const at::Tensor& buffer : buffers) {
      buffer.copy_(flat.narrow(0, at, buffer.numel()).view(buffer.sizes()));
      at += buffer.numel();
    }
  }
}

}  // namespace muster
