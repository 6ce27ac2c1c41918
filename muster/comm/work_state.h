// Inside of Work; for process_group.cc and work.cc.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "muster/comm/agreement.h"
#include "muster/comm/work.h"

namespace muster {

struct Work::State {
  std::string operation;  // "all_reduce #12 on rank 1 of 4"
  c10::intrusive_ptr<c10d::Work> work;
  struct Copy {
    at::Tensor original;    // the caller's, not contiguous
    at::Tensor contiguous;  // what the backend writes; copied back by wait()
  };
  std::vector<Copy> copies;
  std::shared_ptr<Agreement> agreement;
  std::shared_ptr<std::atomic<bool>>
      abandoned;  // the group's: set when an operation is given up while under way
  int64_t sequence = 0;
  std::string signature;
  std::chrono::milliseconds timeout{0};
  bool asynchronous_device = false;  // CUDA: wait() orders streams and does not block the host
};

}  // namespace muster
