// Before a step all ranks of a pipeline agree on its batch, since one that throws alone would leave
// the others waiting for its messages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/pipeline/messages.h"
#include "muster/parallel/pipeline/schedule.h"

namespace muster {

// What a rank tells the others of its step.
struct StepFacts {
  bool trains = true;            // in step(); else in evaluate()
  bool reduces = false;          // the gradients over the replicas, at the step's end
  bool has_other_tied = false;   // a tied weight has other memory, as after torch::load
  bool has_layer_parts = false;  // this rank's stages have parts of divided layers
  int64_t tied_trained = 0;      // a bit for each tied weight that this rank has and trains
  int64_t tied_frozen = 0;       // or has frozen
  int64_t tied_replaced = 0;     // or has another tensor for than the ranks have tied
  int64_t tied_kept = 0;
};

// What this rank was given for a step.
struct PipelineBatch {
  Tensor input, target;
  std::string problem = {};  // what this rank has already found wrong
  int64_t step = 0;
  StepFacts facts = {};
};

// What the ranks found together.
struct AgreedBatch {
  bool has_other_tied = false;   // on some rank
  bool has_layer_parts = false;  // on some rank
  int64_t tied_apart = 0;        // a bit for each that some ranks train and others have frozen
  int64_t tied_replaced = 0;     // on some rank
  int64_t tied_kept = 0;         // on some rank
};

// The forms of the first batch, which all later ones must have. An evaluation has its own.
struct BatchForms {
  std::optional<TensorForm> input, target;
};

class BatchAgreement {
 public:
  BatchAgreement(ProcessGroup group, const PipelineSchedule& schedule)
      : group_(std::move(group)), schedule_(schedule) {}

  // Collective: yes. Blocking: yes. Throws: invalid_argument, on every rank, if the batch is none
  // of this pipeline on one of them, or some ranks train or reduce and others do not.
  AgreedBatch agree(const PipelineBatch& batch, BatchForms& known);

 private:
  struct Row;  // what a rank tells the others of its step and its batch
  struct Alike;

  int last() const { return schedule_.rank_of(schedule_.stages - 1); }
  bool is_first() const { return group_.rank() == 0; }
  bool is_last() const { return group_.rank() == last(); }
  std::string problem_of(const Tensor& batch,
                         const char* name,
                         int64_t step,
                         std::optional<TensorForm>& known) const;
  void check_same_call(const std::vector<Row>& rows, int64_t step) const;
  void check_same_reduce(const std::vector<Row>& rows, int64_t step) const;
  void check_alike(const std::vector<Row>& rows,
                   bool Row::* answer,
                   const Alike& expected,
                   int64_t step) const;
  void check_as_many(const std::vector<Row>& rows) const;
  void warn_of_other_batches(const std::vector<Row>& rows, int64_t step);

  ProcessGroup group_;
  const PipelineSchedule& schedule_;
  int compared_ = 0;  // batches
};

}  // namespace muster
