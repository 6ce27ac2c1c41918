// The progress of a parameter server's workers, and who may go on. A pure state machine; only for
// parameter_server.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"

namespace muster {

class WorkerPace {
 public:
  WorkerPace(size_t workers, int64_t staleness)
      : steps_(workers, 0), here_(workers, true), staleness_(staleness) {}

  void pushed(size_t worker) { ++steps_[worker]; }
  void left(size_t worker) { here_[worker] = false; }  // finished or lost: nobody waits for it

  bool here(size_t worker) const { return here_[worker]; }
  // Steps by which it is ahead of the slowest present worker.
  int64_t lead(size_t worker) const {
    int64_t slowest = steps_[worker];
    for (const size_t i : indices_of(steps_)) {
      if (here_[i])
        slowest = std::min(slowest, steps_[i]);
    }
    return steps_[worker] - slowest;
  }
  bool may_go_on(size_t worker) const { return lead(worker) <= staleness_; }

 private:
  Int64s steps_;
  std::vector<bool> here_;
  int64_t staleness_;
};

}  // namespace muster
