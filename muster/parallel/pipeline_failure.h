// Why a pipeline's step failed, told to every rank: a neighbour of the rank that failed sees it, but a rank
// further off sees only its own neighbour leave. Used by pipeline.cc alone.
#pragma once

#include <cstdint>
#include <string>

#include "muster/comm/process_group.h"
#include "muster/parallel/pipeline_schedule.h"

namespace muster {

class PipelineFailure {
 public:
  // Once for each pipeline of a group, in the same order on all ranks.
  explicit PipelineFailure(ProcessGroup group);

  void now_at(const PipelineAction& action, int64_t step) {
    action_ = action;
    step_ = step;
  }

  // For a handler. An error of this rank's own goes on as it is, after the group's store has it; one of a
  // peer's goes on with the first cause that any rank has left there.
  [[noreturn]] void rethrow_explained();

 private:
  std::string first_cause(const std::string& ours);

  ProcessGroup group_;
  std::string key_;
  PipelineAction action_{PipelineAction::Kind::forward, 0, 0};
  int64_t step_ = 0;
};

}  // namespace muster
