// Ends what a process waits for in its groups, from another thread: when the job has decided that a
// group is no more, every rank of it has to leave it soon, also one that waits for a rank that
// lives. For groups over shared memory, over Gloo, and over both.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

namespace c10d {
class Backend;
}

namespace muster {

// From now on groups are kept track of; without, nothing is. `generation` is in the names that
// their calls have in the rank's activity file, so that calls of several generations are told
// apart; 0 is in none.
void track_groups(int generation);

// Operations that are under way in groups made since track_groups(), and those that begin later,
// fail. Of the groups themselves nothing is freed. From any thread.
void interrupt_groups();

// "", or " of generation 2".
std::string group_name_suffix();

// Made before a group's backend, which is handed over when it is there: so the connections that it
// has made are known.
class GroupTrack {
 public:
  GroupTrack();
  GroupTrack(const GroupTrack&) = delete;
  GroupTrack& operator=(const GroupTrack&) = delete;
  ~GroupTrack();

  // An interruption that came meanwhile counts.
  void add(const c10::intrusive_ptr<c10d::Backend>& backend);

 private:
  struct Before;
  std::unique_ptr<Before> before_;  // null where groups are not kept track of
};

}  // namespace muster
