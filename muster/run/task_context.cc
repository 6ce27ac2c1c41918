// A task's Context has a group of one rank, over a store in this process's memory: what is written
// for a rank of a job runs in a task unchanged.
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "muster/comm/init.h"
#include "muster/data/own_loaders.h"
#include "muster/run/context.h"
#include "muster/run/task_entry.h"

namespace muster {

Context& TaskContext::context() {
  if (!context_) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const ProcessGroup group = init_process_group(store, 0, 1, {.device = parts_.device});
    context_ = std::make_shared<Context>(Context::Parts{.env = {.source = "a task"},
                                                        .assignment = parts_.assignment,
                                                        .device = parts_.device,
                                                        .group = group,
                                                        .stop = parts_.stop});
    own_loaders_ = std::make_shared<OwnLoaders>([](const SamplerIdentity& /*alone*/) {});
  }
  return *context_;
}

void TaskContext::leave() {
  own_loaders_.reset();
  if (context_)
    context_->process_group().shutdown();
}

}  // namespace muster
