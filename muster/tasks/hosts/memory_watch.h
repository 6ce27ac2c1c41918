// How much of this machine's GPU memory other programs use, looked at again while tasks wait for
// memory. For LocalHost. A GPU on which a task of this run is says nothing: what that uses cannot
// be told from others'. That holds for all MIG instances of the GPU, since what is used is told of
// the whole one.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/lists.h"
#include "muster/tasks/schedule/device_pool.h"

namespace muster {

class MemoryWatch {
 public:
  // Other programs use so many bytes of the pool's GPU now.
  using Tell = std::function<void(int gpu, uint64_t bytes)>;

  // `host`: which of the pool is this machine; -1: none.
  MemoryWatch(const DevicePool& pool, int host, Tell tell)
      : pool_(pool), host_(host), tell_(std::move(tell)) {}

  // Every two seconds at most, and only while there is a GPU without a task. `taken`: the pool's
  // GPUs that tasks have. What cannot be seen stays as it was.
  void look(const IntSet& taken);

 private:
  Ints gpus_without(const IntSet& taken) const;
  void tell_of(int gpu, const Host& host) const;

  const DevicePool& pool_;
  int host_;
  Tell tell_;
  OptionalTime looked_;
};

}  // namespace muster
