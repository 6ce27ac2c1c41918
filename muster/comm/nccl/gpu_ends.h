// Ends the records of calls whose end only a GPU knows: NCCL lets the host resume at once. A thread
// asks the GPU now and then.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/record.h"

namespace muster {

class GpuEnds : NoCopy {
 public:
  explicit GpuEnds(Device device) : device_(device) {}
  // A call that the GPU has not done by then stays under way in the record.
  ~GpuEnds();

  // A call that has been waited for ends when the GPU has done what is on the current stream now.
  // An event tells, so none of the call's tensors is kept. Throws: c10::Error of a GPU that has
  // failed.
  void end_after_stream(CallRecord record);

  // The call ends when its work is over. Until then its tensors are kept.
  void end_with(CallRecord record, const WorkPtr& work);

 private:
  struct Pending {
    CallRecord record;
    std::optional<c10::Event> reached{};
    WorkPtr work{};
  };
  bool is_capturing_now() const;
  void add(Pending pending);
  void run();
  static bool end_if_over(Pending& pending);

  const Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Pending> added_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace muster
