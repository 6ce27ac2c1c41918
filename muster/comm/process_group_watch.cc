// LibTorch's own parts call the group's backend directly, and a CUDA graph calls it without the
// host. What the GPU does for them is handed to the LateWatch like a call of the group. The ranks
// do not compare such calls, whose numbers may differ where a backward has failed on some of them:
// they only say that they wait.
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "muster/base/lock.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/group_state.h"
#include "muster/comm/nccl/gpu_graph.h"
#include "muster/comm/process_group.h"
#include "muster/comm/work_state.h"

namespace muster {

namespace {

// Is over when the GPU has come to an event, which is recorded once the host has given the stream
// all. The host may be kept from that: a stream takes only so much ahead.
class StreamWork : public c10d::Work {
 public:
  explicit StreamWork(Device device) : device_(device), behind_(device.type()) {}

  void end() {
    const Lock lock(mutex_);
    behind_.record(current_stream_of(device_));
    given_ = true;
  }
  void give_up() {
    const Lock lock(mutex_);
    given_up_ = true;
  }
  bool isCompleted() override {
    const Lock lock(mutex_);
    return given_up_ || (given_ && behind_.query());
  }

 private:
  const Device device_;
  std::mutex mutex_;
  c10::Event behind_;
  bool given_ = false, given_up_ = false;
};

}  // namespace

void ProcessGroup::watch(const char* operation, int64_t number, const WorkPtr& work) const {
  const Gate::Pass pass = state_->gate.enter();
  if (!pass || !state_->can.on_gpus)
    return;
  if (is_captured_now(device())) {
    state_->is_in_graph = true;
    return;
  }
  if (!state_->late_watch)
    return;
  auto watched = std::make_shared<Work::State>();
  watched->operation = operation;
  watched->sequence = number;
  watched->rank = state_->rank;
  watched->names = state_->names;
  watched->agreement = state_->agreement;
  watched->work = work;
  watched->on_gpu = true;
  watched->waiting = Work::State::Waiting::by_itself;
  watched->deadline = Deadline(timeout_.value_or(state_->options.timeout));
  state_->late_watch->add_of_gpu(std::move(watched));
}

void ProcessGroup::watch_stream(const char* operation,
                                int64_t number,
                                c10::function_ref<void()> run) const {
  if (!state_->can.on_gpus || is_captured_now(device()))
    return run();
  const auto work = c10::make_intrusive<StreamWork>(device());
  watch(operation, number, work);
  try {
    run();
    work->end();
  } catch (...) {
    work->give_up();
    throw;
  }
}

}  // namespace muster
