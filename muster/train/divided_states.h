// Of a training that is divided over ranks, the newest parts in memory: each rank keeps its own and that of
// one other rank, its ward, so that a rank that is lost is not its part's end. Of two steps, since a rank may
// die while one is being kept. What kept_state.h is where every rank has the whole. Used by Checkpoints
// alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/train/kept_state.h"

namespace muster {

class DividedStates {
 public:
  // As KeptStates::of.
  static DividedStates& of(const std::string& folder, int rank);

  // Copies this rank's part, gives it to a neighbour, and takes that of its ward, into memory that is used
  // again and again. Collective: yes.
  void keep(const KeptState& mine, ProcessGroup& group);

  // This rank's part of the newest step of which all parts are there: from another rank where it has it not.
  // Nothing where there is no such step, or the ranks are more or fewer than then. Collective: yes.
  std::optional<KeptState> recover(ProcessGroup& group);

  // Among how many ranks the newest step was divided that recover() was told of; 0: none.
  int ranks_then() const { return ranks_then_; }

 private:
  struct Part {
    int rank = -1;  // whose it is; -1: nobody's
    std::string head;
    at::Tensor bytes;

    void make_room(int of, const std::string& its_head);
  };
  struct Kept {
    int64_t version = -1;  // KeptState::version(); -1: not whole
    int world_size = 0;
    Part mine, wards;
  };
  const Part* part_of(int rank, int64_t version) const;
  std::string told() const;

  std::array<Kept, 2> kept_;
  int ranks_then_ = 0;
  int distance_ = 0;           // from a rank to the neighbour that keeps its part
  int distance_of_ranks_ = 0;  // among so many; 0: not known
};

// How far from a rank the neighbour is that keeps its part: the nearest distance at which all ranks have one
// on another host; 1 where there is no such. `hosts`: of each rank.
int neighbour_distance(const std::vector<std::string>& hosts);

}  // namespace muster
