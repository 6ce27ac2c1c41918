// Pipeline schedules as data: what each rank does, in which order. Pure: no tensors, no messages.
// `Pipeline` (pipeline.h) executes them; simulation.h checks, times and draws them.
//
// A model is cut into stages 0 … stages-1; stage s is on rank s % ranks. A step's batch is cut into
// micro-batches, and every stage does one forward and one backward per micro-batch.
#pragma once

#include <string>
#include <vector>

namespace muster {

struct PipelineAction {
  enum class Kind : char {
    forward = 'F',
    backward = 'B',    // whole: gradients of the stage's input and weights
    input_grad = 'I',  // or in two parts: the part that the previous stage waits for,
    weight_grad = 'W'  // and the part that only the optimizer waits for
  };
  Kind kind;
  int stage;
  int micro_batch;
  char letter() const { return static_cast<char>(kind); }
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

// All forwards, then all backwards. Keeps micro_batches activations per stage. Throws:
// invalid_argument for numbers below 1 (like all of these). Source: Huang et al., GPipe, 2019.
PipelineSchedule gpipe(int ranks, int micro_batches);

// Each rank starts backwards as early as possible, so rank r keeps at most ranks - r activations;
// the idle time is gpipe's. Source: Narayanan et al., PipeDream-Flush, 2021.
PipelineSchedule one_f_one_b(int ranks, int micro_batches);

// 1F1B with several stages per rank: divides the idle time by stages_per_rank and multiplies the
// messages by it. Throws: invalid_argument if micro_batches is not a multiple of ranks. Source:
// Narayanan et al., Megatron-LM, 2021.
PipelineSchedule interleaved(int ranks, int micro_batches, int stages_per_rank);

// 1F1B with backwards in two parts: weight gradients fill the idle time. Every rank keeps at most
// `ranks` activations. Source: Qi et al., Zero Bubble Pipeline Parallelism, ZB-H1, 2024.
PipelineSchedule zero_bubble(int ranks, int micro_batches);

// "F2", or "F2/4" if a rank has several stages: forward of micro-batch 2 at stage 4.
std::string to_text(const PipelineAction& action, const PipelineSchedule& schedule);

// The name and the numbers, then one line per rank.
std::string to_text(const PipelineSchedule& schedule);

}  // namespace muster
