// The newest state of a training in this process's own memory, from which a job continues after
// ranks were replaced in place. It outlives the call of the rank's function, in which everything
// else is created anew. Used only by the stores of Checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/checkpoint/image.h"
#include "muster/comm/process_group.h"

namespace muster {

// Which history of a training its next states belong to.
struct TrainingBranch {
  std::string begun_by{};    // the run that started the training
  std::string path{};        // of the checkpoint that was saved or restored last
  SerialRanges abandoned{};  // Manifest::abandoned of the next checkpoint
  // How often the training has gone back (Checkpoints::go_back); later states are newer, whatever
  // their step.
  int64_t goings_back = 0;
  // That this process saved last, since it restored a state. Below 0: none.
  int64_t saved_step = -1;
  bool has_warned_of_lower_step = false;
};

struct KeptState {
  CheckpointImage image;  // its position.step is the state's step
  int rank = 0;           // the rank that kept it
  TrainingBranch branch;
  // Rank 0's buffers and parts, where they differ: a rank without a state starts with rank 0's.
  NamedTensors model_of_rank0 = {}, parts_of_rank0 = {};

  // The later of two states of a training has the greater version.
  int64_t version() const { return (branch.goings_back << 40) + image.position.step; }
};

// This process's object for a training with checkpoints in `folder`. A process that a launcher
// started as a rank has one, whatever its rank number becomes; otherwise ranks may be threads, and
// `rank` distinguishes them. Never destroyed: it outlives all that is made anew for a rank.
template <class Kept>
Kept& kept_by_process(const std::string& folder, int rank) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<std::string, int>, Kept>;
  const Lock lock(mutex);
  return all[{folder, get_env("RANK") ? 0 : rank}];
}

class KeptStates {
 public:
  // Copies the image into memory that is reused. Shares memory with `state` for rank 0's tensors.
  void keep(const KeptState& state);
  const KeptState* newest() const { return is_whole_ ? &state_ : nullptr; }

 private:
  KeptState state_;
  bool is_whole_ = false;
};

// The place of a kept state.
struct KeptWhere {
  int source = 0;  // the first rank with the newest state
  Ints others;     // the ranks without it
};

// The state as rank 0 had it: the start for a rank that is new or had another number, or after the
// number of ranks has changed.
KeptState as_rank0_had_it(const KeptState& mine);

// Nothing if no rank has a state. Collective: yes.
std::optional<KeptWhere> find_newest_kept(ProcessGroup& group, const KeptStates& mine);

// Ranks without the state get rank 0's from the source, and keep it too. Collective: yes.
void share_newest_kept(ProcessGroup& group, const KeptWhere& where, KeptStates& mine);

}  // namespace muster
