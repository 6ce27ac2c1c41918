// Tells every rank why a pipeline's step failed: a neighbour of the failed rank sees the cause, but
// a more distant rank sees only its own neighbour leave. Used only by pipeline.cc.
#pragma once

#include <cstdint>
#include <string>

#include "muster/comm/process_group.h"
#include "muster/parallel/pipeline/schedule.h"

namespace muster {

class PipelineFailure {
 public:
  // Make one for each pipeline of a group, in the same order on all ranks.
  explicit PipelineFailure(ProcessGroup group);

  void now_at(const PipelineAction& action, int64_t step) {
    action_ = action;
    step_ = step;
  }

  // Call it in a handler. An error of this rank's own is stored in the group's store and rethrown;
  // a peer's error is rethrown with the first cause that any rank has stored.
  [[noreturn]] void rethrow_explained();

 private:
  std::string first_cause(const std::string& ours);

  ProcessGroup group_;
  std::string key_;
  PipelineAction action_{PipelineAction::Kind::forward, 0, 0};
  int64_t step_ = 0;
};

}  // namespace muster
