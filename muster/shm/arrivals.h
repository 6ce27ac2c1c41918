// Rank 0's side of a rendezvous: takes connections at its socket until every rank has one.
// Strangers, those that say nothing and floods of either take neither the ranks' time nor their
// place.
#pragma once

#include <functional>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/fd.h"

namespace muster::shm {

// Whether the process at the other end is of this one's user.
bool of_this_user(int fd);

class Arrivals {
 public:
  // `welcome`: what a rank is sent when it has said its number; false: it has gone meanwhile.
  Arrivals(int listener, int size, std::function<bool(int fd)> welcome);

  // The connections, by rank; at 0 none. Blocking: until all have come. Throws: timeout naming the
  // ranks that did not come; unavailable when there is no descriptor left for one.
  std::vector<Fd> wait(const Deadline& deadline);

 private:
  struct Caller {  // of this user, and has not said who it is
    Fd fd;
    Deadline until;
  };

  void wait_for_some(const Deadline& deadline);
  void take_callers();
  void take_caller();
  std::vector<int> missing() const;

  int listener_;
  std::function<bool(int fd)> welcome_;
  std::vector<Fd> peers_;
  std::vector<Caller> callers_;  // the oldest first
};

}  // namespace muster::shm
