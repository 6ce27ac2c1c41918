// What must be consistent before a pipeline's first step. Used only by pipeline.cc.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/pipeline/pipeline.h"

namespace muster {

// What is wrong on this rank itself; empty: nothing.
std::string problem_of_pipeline(const PipelineStages& stages,
                                const ProcessGroup& group,
                                const PipelineOptions& options);

// Reports on every rank what is wrong on some; empty: nothing. Collective: yes. Throws:
// invalid_argument.
void refuse_on_all_stages(ProcessGroup& group, const std::string& problem);

// Collective: yes. Throws: invalid_argument, on every rank, with the first line that differs.
void check_same_schedules(ProcessGroup& group, const PipelineOptions& options);

// What a rank was given in a step, for others to compare. Most programs give every rank the whole
// batch, though only the first stage's rank reads the input, and the last stage's the target.
struct BatchMark {
  int64_t forms = 0;              // the shapes and types
  int64_t input = 0, target = 0;  // hashes of the values; 0 for what cannot be of a batch
};
// Blocking: reads the values. A tensor all of whose elements are alike stands for one that is not
// read, and so does an undefined one.
BatchMark mark_of_batch(const Tensor& input, const Tensor& target);
// Whether two ranks have read different batches.
bool are_other_batches(const BatchMark& one, const BatchMark& other);

}  // namespace muster
