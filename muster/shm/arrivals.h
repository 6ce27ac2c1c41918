// Rank 0's side of a rendezvous: it takes connections at its socket until every rank has one.
// Strangers, callers that say nothing and floods of either take neither the ranks' time nor their
// place.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/lists.h"

namespace muster::shm {

// Whether the process at the other end of the socket runs as the same user.
bool is_of_this_user(int fd);

// Returns the time to give to poll(): a minute at most, since it counts in int. Units:
// milliseconds.
int poll_timeout(milliseconds left);

class Arrivals {
 public:
  // `welcome` sends a rank what it needs when it has said its number, and returns false where the
  // rank has gone meanwhile.
  Arrivals(int listener, int size, std::function<bool(int fd)> welcome);

  // Returns the connections, by rank; at 0 none. Blocking: until all have come. Throws: timeout
  // naming the ranks that did not come; unavailable when there is no descriptor left for one.
  std::vector<Fd> wait(const Deadline& deadline);

 private:
  struct Caller {  // of this user; it has not said which rank it is
    Fd fd;
    Deadline until;
  };

  void wait_for_some(const Deadline& deadline);
  void accept_caller();
  void hear_callers();
  bool is_missing(int rank) const;
  Ints missing_ranks() const;

  int listener_;
  std::function<bool(int fd)> welcome_;
  std::vector<Fd> peers_;
  std::vector<Caller> callers_;  // the oldest first
};

}  // namespace muster::shm
