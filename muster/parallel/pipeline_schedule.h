// Pipeline schedules as data: which rank does what, in which order. Pure: neither tensors nor messages.
// `Pipeline` (pipeline.h) executes them; pipeline_simulation.h checks, times and draws them.
//
// A model is cut into stages 0 … stages-1; stage s lies on rank s % ranks. A step's batch is cut into
// micro-batches, and every stage does every micro-batch forward once and backward once.
#pragma once

#include <string>
#include <vector>

namespace muster {

struct PipelineAction {
  enum class Kind : char {
    forward = 'F',
    backward = 'B',    // whole: gradients of the stage's input and of its weights
    input_grad = 'I',  // or these two instead: what the stage before waits for,
    weight_grad = 'W'  // and what only the optimizer waits for
  };
  Kind kind;
  int stage;
  int micro_batch;
  bool operator==(const PipelineAction&) const = default;
};

struct PipelineSchedule {
  std::string name;
  int ranks = 1;
  int stages = 1;  // of all ranks
  int micro_batches = 1;
  std::vector<std::vector<PipelineAction>> actions = {};  // by rank, in order

  int rank_of(int stage) const { return stage % ranks; }
  int stages_per_rank() const { return stages / ranks; }
  bool operator==(const PipelineSchedule&) const = default;
};

// All forwards, then all backwards. Holds micro_batches activations a stage. Throws (as all of these):
// invalid_argument for numbers below 1. Source: Huang et al., GPipe, 2019.
PipelineSchedule gpipe(int ranks, int micro_batches);

// A rank turns to backwards as soon as it can, so that rank r holds ranks - r activations at most; the idle
// time is gpipe's. Source: Narayanan et al., PipeDream-Flush, 2021.
PipelineSchedule one_f_one_b(int ranks, int micro_batches);

// 1F1B with several stages a rank: idle time divided by stages_per_rank, as many times the messages. Throws:
// invalid_argument where ranks do not divide micro_batches. Source: Narayanan et al., Megatron-LM, 2021.
PipelineSchedule interleaved(int ranks, int micro_batches, int stages_per_rank);

// 1F1B with backwards in two: weights' gradients fill what would be idle time. Every rank holds `ranks`
// activations at most. Source: Qi et al., Zero Bubble Pipeline Parallelism, ZB-H1, 2024.
PipelineSchedule zero_bubble(int ranks, int micro_batches);

// "F2", or "F2/4" where a rank has several stages: forward of micro-batch 2 at stage 4.
std::string to_text(const PipelineAction& action, const PipelineSchedule& schedule);

// The name and numbers, then a line a rank.
std::string to_text(const PipelineSchedule& schedule);

}  // namespace muster
