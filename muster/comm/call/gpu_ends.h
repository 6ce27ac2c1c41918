// Ends the records of calls whose end only a GPU knows: NCCL lets the host go on at once. An event is put
// behind the call on its stream, and a thread asks for it now and then; so no tensor is kept for that.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "muster/comm/call/record.h"

namespace muster {

class GpuEnds {
 public:
  GpuEnds() = default;
  GpuEnds(const GpuEnds&) = delete;
  GpuEnds& operator=(const GpuEnds&) = delete;
  // What the GPU has not reached stays under way in the record.
  ~GpuEnds();

  // The call ends when `device` has done what is on its current stream now. At once where nothing is
  // recorded, and while a CUDA graph is captured, whose events nobody may ask for. The first starts the
  // thread.
  void end_after_stream(CallRecord record, c10::Device device);

 private:
  struct Pending {
    CallRecord record;
    c10::Event reached;
  };
  void run();
  static bool end_if_reached(Pending& pending);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Pending> added_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace muster
