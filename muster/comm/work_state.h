// The state of a Work, which process_group_call.cc fills in, and work.cc and late_watch.cc use.
#pragma once

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/rank_names.h"
#include "muster/base/tensors.h"
#include "muster/comm/agreement.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/fork_guard.h"
#include "muster/comm/call/record.h"
#include "muster/comm/nccl/gpu_ends.h"
#include "muster/comm/work.h"

namespace muster {

struct Work::State {
  const char* operation = "";
  int64_t sequence = 0;
  int peer = -1;  // of a message between two ranks, with its tag
  int tag = 0;
  int rank = 0;
  std::shared_ptr<const RankNames> names{};
  std::string name() const;  // "all_reduce #12 on rank 1 of 4"; below 0: without the number
  // "missing rank(s) 1", as far as this rank knows when the time is over. Throws: c10d's errors
  // where the store has gone.
  std::string why_late() const;

  WorkPtr work{};
  CallRecord record{};                  // where the backend does not end it itself
  std::shared_ptr<GpuEnds> gpu_ends{};  // of a GPU's operation: ends the record after the wait
  struct Copy {
    Tensor original;    // the caller's, not contiguous
    Tensor contiguous;  // what the backend writes; copied back by wait()
  };
  std::vector<Copy> copies{};
  std::shared_ptr<Agreement> agreement{};
  std::shared_ptr<std::atomic<bool>> abandoned{};  // the group's; set when a call is given up
  std::atomic<bool> waited = false;                // its caller waits, or has
  bool on_gpu = false;                             // the GPU does it, and the host may go on
  std::optional<c10::Stream> started_on{};         // of a GPU's operation that has copied: where
  std::string signature{};  // of a call that the ranks compare by the agreement
  ForkMark fork{};
  Deadline deadline{milliseconds(0)};  // from the start of the operation

  // A timed wait that runs out is a question for some works and the end for others.
  enum class Waiting {
    in_slices,  // Gloo's collectives, and NCCL's calls that have a limit of their own: looks at the
                // other ranks now and then
    once,       // Gloo's send and recv, which close every connection when their time runs out
    by_itself,  // the backend has the timeout: shared memory; messages over MPI. NCCL's other calls
                // only order streams, and the LateWatch has the timeout
  };
  Waiting waiting = Waiting::in_slices;

  std::once_flag copied_back{};  // by the first wait() of this Work and its copies

  // The operation is a GPU's, and its caller waits for it all the same: it throws what is wrong.
  bool keeps_host_waiting() const { return on_gpu && waited && waiting == Waiting::in_slices; }
};

}  // namespace muster
