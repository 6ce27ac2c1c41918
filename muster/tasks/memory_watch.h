// How much of this machine's GPU memory other programs use, looked at again while tasks wait for memory. For
// LocalHost. A GPU on which a task of this run is says nothing: what that uses cannot be told from others'.
#pragma once

#include <functional>
#include <optional>

#include "muster/base/clock.h"
#include "muster/tasks/pool.h"

namespace muster {

class MemoryWatch {
 public:
  // Other programs use so many bytes of the pool's GPU now.
  using Tell = std::function<void(int gpu, uint64_t bytes)>;

  // `host`: which of the pool is this machine; -1: none.
  MemoryWatch(const Pool& pool, int host, Tell tell) : pool_(pool), host_(host), tell_(std::move(tell)) {}

  // Every two seconds at most. What cannot be seen stays as it was.
  void look();

 private:
  const Pool& pool_;
  int host_;
  Tell tell_;
  std::optional<Clock::time_point> looked_ = {};
};

}  // namespace muster
