// The newest state of a training in this process's own memory: what a job that replaces ranks in place goes
// on from. It outlives the call of the rank's function, in which everything else is made anew. Used by
// Checkpoints alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/checkpoint/image.h"
#include "muster/comm/process_group.h"

namespace muster {

struct KeptState {
  CheckpointImage image;  // its position.step says of which step
  int rank = 0;           // that kept it
  // How often the training had gone back (Checkpoints::go_back): what follows it is newer, whatever its step.
  int64_t goings_back = 0;
  std::vector<SerialRange> abandoned;  // Manifest::abandoned of the next checkpoint
  // What rank 0 has otherwise, of buffers and of parts: a rank that has nothing begins with rank 0's.
  NamedTensors model_of_rank0, parts_of_rank0;
  std::string begun_by;  // the run that the training began in
  std::string path;      // of the checkpoint that was saved last

  // Of two states of a training the later one has the greater.
  int64_t version() const { return (goings_back << 40) + image.position.step; }
};

class KeptStates {
 public:
  // This process's of the training whose checkpoints are in `folder`. A process that a launcher has started
  // as a rank has one, whichever rank it comes to be; else ranks may be threads, and `rank` tells them apart.
  static KeptStates& of(const std::string& folder, int rank);

  // Copies the image into memory that is used again and again.
  // Shares memory with `state` where that says of rank 0.
  void keep(const KeptState& state);
  const KeptState* newest() const { return is_whole_ ? &state_ : nullptr; }

 private:
  KeptState state_;
  bool is_whole_ = false;
};

// Where a kept state lies.
struct KeptWhere {
  int source = 0;           // the first rank that has the newest
  std::vector<int> others;  // the ranks that have not
};

// The state as rank 0 had it: what a rank begins with that was none, or another one, or one of more or fewer.
KeptState as_rank0_had_it(const KeptState& mine);

// Nothing where no rank has any. Collective: yes.
std::optional<KeptWhere> find_newest_kept(ProcessGroup& group, const KeptStates& mine);

// Ranks without it end with rank 0's, from the source, and keep it too. Collective: yes.
void share_newest_kept(ProcessGroup& group, const KeptWhere& where, KeptStates& mine);

}  // namespace muster
