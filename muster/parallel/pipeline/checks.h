// What must be consistent before a pipeline's first step. Used only by pipeline.cc.
#pragma once

#include <string>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/parallel/pipeline/pipeline.h"

namespace muster {

// What is wrong on this rank itself; empty: nothing.
std::string problem_of_pipeline(const std::vector<PipelineStage>& stages,
                                const ProcessGroup& group,
                                const PipelineOptions& options);

// Reports on every rank what is wrong on some; empty: nothing. Collective: yes. Throws:
// invalid_argument.
void refuse_on_all_stages(ProcessGroup& group, const std::string& problem);

// Collective: yes. Throws: invalid_argument, on every rank, with the first line that differs.
void check_same_schedules(ProcessGroup& group, const PipelineOptions& options);

}  // namespace muster
