// Watches operations that nobody here waits for, and names the ranks that do not come. The caller
// of an asynchronous operation may be stuck elsewhere, as in DistributedDataParallel's own wait for
// its gradients; and where a GPU does the work, wait() does not block the host at all.
#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "muster/base/late_ranks.h"
#include "muster/base/lock.h"
#include "muster/base/no_copy.h"
#include "muster/base/torch_names.h"
#include "muster/comm/work.h"
#include "muster/comm/work_state.h"

namespace muster {

class LateWatch : NoCopy {
 public:
  // `lost` is called, once, when a GPU's operation can never be over: a rank of its group, on this
  // host, has ended some seconds ago, another makes a different call, the time is over, or NCCL has
  // failed. It gets "all_reduce #12 on rank 0 of 2: rank 1 has ended", for example.
  using Lost = std::function<void(const std::string& what)>;
  explicit LateWatch(Lost lost = {}, Device device = kCPU)
      : lost_(std::move(lost)), device_(device) {}
  ~LateWatch();

  // Watches the operation from now on, until it is over or waited for. The first starts the thread.
  void add(const WorkStatePtr& state);

  // Watches a GPU's operation until it is over, or the next comes: one communicator does them one
  // after the other, so the newest is enough, and only its tensors are kept.
  void add_of_gpu(WorkStatePtr state);

 private:
  struct Watched {
    std::weak_ptr<Work::State> state;
    LateRanks late_ranks;
    bool is_shown = false;
  };
  // Only the thread uses it.
  struct WatchedOfGpu {
    WorkStatePtr state;  // the caller lets it go long before it is over
    LateRanks late_ranks;
    Clock::time_point began = Clock::now();
    bool says_waiting = false;
    std::optional<Clock::time_point> lost_since{};
  };
  void start_thread();
  void run();
  void look_at_host(UniqueLock& lock);
  bool look_at_gpu(UniqueLock& lock);
  bool is_over_on_gpu(const WorkStatePtr& newest);
  void forget_of_gpu();
  void look_for_lost();
  void look_for_failure();
  void look_at_deadline();
  void compare_on_gpu();
  void give_up(const std::string& what);

  Lost lost_;
  const Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Watched> watched_;
  WorkStatePtr newest_of_gpu_;
  std::optional<WatchedOfGpu> of_gpu_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace muster
