// Ends what a process waits for in its groups, from another thread. When the job has decided that a
// group is no more, every rank of it has to leave it soon, also one that waits for a rank that
// lives. It works for groups over shared memory, over Gloo, over both, and over NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "muster/base/no_copy.h"
#include "muster/comm/call/c10d_pointers.h"

namespace muster {

// Groups that are made from now on can be interrupted; before, none can. The names that their calls
// have in the rank's activity file end in `generation`, so that calls of several generations are
// told apart; 0 is not shown.
void track_groups(int generation);

// Operations that are under way in groups made since track_groups(), and those that begin later,
// fail. Nothing of the groups themselves is freed. Any thread may call it.
void interrupt_groups();

// Whether track_groups() was called.
bool groups_are_tracked();

// How often interrupt_groups() was called. The count grows before anything ends: whoever finds it
// as it was before, after a GPU has done its work, has the work's results.
int64_t num_interruptions();

// Returns " of generation 2", or "" of generation 0.
std::string group_name_suffix();

// It is made before a group's backends, and gets each once that is there: the connections that came
// meanwhile are the backend's.
class GroupTrack : NoCopy {
 public:
  GroupTrack();
  ~GroupTrack();

  // Interrupts the backend if an interruption came meanwhile.
  void add(const BackendPtr& backend);

 private:
  struct Before;
  std::unique_ptr<Before> before_;  // null where groups are not tracked
};

}  // namespace muster
