// The thread starts with the first call, and asks the GPU every few milliseconds about those that
// are pending. It keeps them to itself, so that a new call only appends to added_.
#include "muster/comm/nccl/gpu_ends.h"

#include <exception>
#include <iterator>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/lock.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/nccl/gpu_turn.h"
#include "muster/comm/nccl/nccl.h"
#include "muster/comm/torch_compat.h"

namespace muster {

namespace {

// A call's end is written down at most this much later.
constexpr milliseconds kAskEvery{10};

}  // namespace

GpuEnds::~GpuEnds() {
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable())
    thread_.join();
}

void GpuEnds::end_after_stream(CallRecord record) {
  if (!record)
    return;
  try {
    if (is_capturing_now())
      return record.end(/*failed=*/false);
    c10::Event reached(device_.type());
    reached.record(current_stream_of(device_));
    add({.record = std::move(record), .reached = std::move(reached)});
  } catch (...) {
    record.end(/*failed=*/true);
    throw;
  }
}

void GpuEnds::end_with(CallRecord record, const WorkPtr& work) {
  if (!record)
    return;
  if (is_capturing_now())
    return record.end(/*failed=*/false);
  add({.record = std::move(record), .work = work});
}

// Nobody may ask for the events of a CUDA graph while it is captured.
bool GpuEnds::is_capturing_now() const {
  return is_capturing(current_stream_of(device_),
                      /*unknown=*/true);
}

void GpuEnds::add(Pending pending) {
  const Lock lock(mutex_);
  added_.push_back(std::move(pending));
  if (!thread_.joinable()) {
    const BlockedSignals blocked;  // in the thread, for good
    thread_ = std::thread([this] { run(); });
  } else if (added_.size() == 1) {
    changed_.notify_one();
  }
}

// The lock is free while it asks the GPU, so that nobody's next call waits for that. It asks once
// more before it stops.
void GpuEnds::run() {
  begin_gpu_thread(device_);
  std::vector<Pending> pending;
  UniqueLock lock(mutex_);
  for (bool stops = false; !stops;) {
    if (pending.empty())
      changed_.wait(lock, [&] { return stop_ || !added_.empty(); });
    changed_.wait_for(lock, kAskEvery, [&] { return stop_; });
    stops = stop_;
    std::move(added_.begin(), added_.end(), std::back_inserter(pending));
    added_.clear();
    lock.unlock();
    {
      const GpuTurn turn;
      if (!turn)
        return keep_for_ever(std::move(pending));
      std::erase_if(pending, end_if_over);
    }
    lock.lock();
  }
}

// A GPU that has failed says so wherever it is asked, and the rank's own next call tells of it.
bool GpuEnds::end_if_over(Pending& pending) {
  try {
    const bool is_over = pending.work ? pending.work->isCompleted() : pending.reached->query();
    if (!is_over)
      return false;
    pending.record.end(/*failed=*/pending.work && pending.work->exception() != nullptr);
  } catch (const std::exception&) {
    pending.record.end(/*failed=*/true);
  }
  return true;
}

}  // namespace muster
