// Names the ranks that do not come to an operation which nobody here waits for yet: the caller of an
// asynchronous one may be stuck elsewhere, as in DistributedDataParallel's own wait for its gradients.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "muster/base/late_ranks.h"
#include "muster/comm/work_state.h"

namespace muster {

class LateWatch {
 public:
  LateWatch() = default;
  LateWatch(const LateWatch&) = delete;
  LateWatch& operator=(const LateWatch&) = delete;
  ~LateWatch();

  // From now on until it is over, or waited for. The first starts the thread.
  void add(const std::shared_ptr<Work::State>& state);

 private:
  struct Watched {
    std::weak_ptr<Work::State> state;
    LateRanks late_ranks;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Watched> watched_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace muster
