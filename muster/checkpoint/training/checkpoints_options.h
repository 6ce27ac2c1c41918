// How Checkpoints saves and resumes a training.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/strings.h"

namespace muster {

// The number by which the checkpoints of a training are compared.
struct BestOptions {
  std::string metric = "metric";  // its name, for people and for the manifest
  bool larger_is_better = false;
  // Early stopping: the training is to stop after so many values in a row that are not better than
  // the best by more than `min_delta`. 0: never.
  int64_t patience = 0;
  double min_delta = 0;
};

struct CheckpointsOptions {
  std::string folder{};  // default: `checkpoints` in the job's folder
  int64_t every = 0;     // steps between saves by save_when_due(); 0: none
  // Time between saves by save_when_due(), by rank 0's clock; 0: none. It costs a small broadcast
  // per step.
  milliseconds every_time{0};
  int keep_last = 3;  // remove older ones of this training, from any run; 0 keeps all
  // Compares checkpoints by a metric (Checkpoints::save_if_best). The best one is kept beside the
  // last ones. Its state is the part "best", which is saved and resumed as others are.
  std::optional<BestOptions> best{};
  bool resume = false;  // go on from the newest checkpoint
  // Go back to this checkpoint of the folder, such as "step-100". Later saves then count as newer
  // than the steps that were abandoned. Restarted ranks go on from what they have saved since.
  std::string resume_from{};
  // Parts that a checkpoint may lack, since the program that saved it did not have them yet: they
  // keep the state that they have. Not for models and optimizers.
  Strings new_parts{};
  // Parts of the checkpoint that this program does without, as of one that no longer averages its
  // weights.
  Strings leave_out{};
  // Parts that begin anew although the checkpoint has them: they keep the state that they have.
  // Ranks that were restarted go on with all parts that they have saved. Not for models and
  // optimizers.
  Strings fresh{};
  // Optimizers keep the learning rates that the program gave them, and schedules their initial
  // rates. If false, those of the checkpoint are taken, and rank 0 logs where they differ from the
  // program's.
  bool new_learning_rates = false;
  // save() only copies the state, and a thread writes it. The ranks that write (rank 0, or every
  // rank for a sharded model) need memory for a second copy of what they write.
  bool background = false;
  // In-memory saves for `muster run --on-failure replace`: every rank keeps the state in its memory
  // after every n-th step seen by save_or_stop() or save_when_due(). Default: 1 under that option,
  // else 0 (never).
  std::optional<int64_t> in_memory{};
  // In-memory saves for a model that is sharded over ranks. Each rank keeps its own part and that
  // of one other rank, on another host if there is one, for two steps. Units: four times a rank's
  // part in memory, and once over the network at each kept step. If false, such a model goes on
  // from disk.
  bool in_memory_of_neighbours = false;
  // The job, the launch of it, and how often its ranks were started before. Restarted ranks go on
  // from the launch's own newest checkpoint, whatever `resume` says. A muster::Context supplies all
  // three.
  std::string run_id{};
  std::string launch{};
  int attempt = 0;
  // Whether the ranks are to stop; all ranks call it together. Default: Context::should_stop.
  std::function<bool()> should_stop{};
};

}  // namespace muster
