#include "muster/comm/call/gpu_ends.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/comm/torch_compat.h"

namespace muster {

namespace {

// Also how much later than it was a call's end is written down, at most.
constexpr std::chrono::milliseconds kAskEvery{10};

}  // namespace

GpuEnds::~GpuEnds() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void GpuEnds::end_after_stream(CallRecord record, c10::Device device) {
  if (!record) return;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (is_capturing(stream)) return record.end(/*failed=*/false);
  c10::Event reached(device.type());
  reached.record(stream);
  const std::lock_guard lock(mutex_);
  added_.push_back({.record = std::move(record), .reached = std::move(reached)});
  if (!thread_.joinable()) {
    const BlockedSignals blocked;  // in the thread, for good
    thread_ = std::thread([this] { run(); });
  } else if (added_.size() == 1) {
    changed_.notify_one();
  }
}

// Not locked while it asks the GPU: nobody's next call waits for that.
void GpuEnds::run() {
  std::vector<Pending> pending;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (pending.empty()) changed_.wait(lock, [&] { return stop_ || !added_.empty(); });
    changed_.wait_for(lock, kAskEvery, [&] { return stop_; });
    if (stop_) return;
    std::move(added_.begin(), added_.end(), std::back_inserter(pending));
    added_.clear();
    lock.unlock();
    std::erase_if(pending, end_if_reached);
    lock.lock();
  }
}

// A GPU that has failed says so wherever it is asked; the rank's own next call tells of it.
bool GpuEnds::end_if_reached(Pending& pending) {
  try {
    if (!pending.reached.query()) return false;
    pending.record.end(/*failed=*/false);
  } catch (const std::exception&) {
    pending.record.end(/*failed=*/true);
  }
  return true;
}

}  // namespace muster
