// The Reducer gets a c10d group with the same backends, whose all_reduce writes the call down
// before it passes it on. A future tells its end, or on a GPU the GPU itself
// (comm/nccl/gpu_ends.h). What the GPU does is handed to the group, which watches it.
#include "muster/ddp/recorded_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/record.h"
#include "muster/comm/capabilities.h"
#include "muster/comm/nccl/gpu_ends.h"

namespace muster {

namespace {

using C10dGroup = c10d::ProcessGroup;

// Counts a group's buckets since it was made: its Reducers come and go, and it may have several.
std::atomic<int64_t>& bucket_count(const std::string& group) {
  static std::mutex mutex;
  static auto& counts = *new std::map<std::string, std::atomic<int64_t>>;  // never destroyed
  const Lock lock(mutex);
  return counts[group];
}

// A group for the Reducer alone, with the backends of the given one.
class RecordedGroup : public C10dGroup {
 public:
  RecordedGroup(const muster::ProcessGroup& group, const std::string& name)
      : C10dGroup(group.store(), group.rank(), group.size()),
        group_(group),
        name_(name),
        count_(bucket_count(name)) {
    const C10dGroup::BackendType on_device = group.c10d()->getBackendType();
    for (const Device device : group.c10d()->getDeviceTypes()) {
      const auto backend = group.c10d()->getBackend(device.type());
      const auto bound = backend->getBoundDeviceId();
      setBackend(device.type(), device.is_cpu() ? C10dGroup::GLOO : on_device, backend);
      backend->setBoundDeviceId(bound);  // which setBackend() takes from this group
    }
    setDefaultBackend(on_device);
    if (capabilities_of(group.backend()).on_gpus)
      gpu_ends_ = std::make_unique<GpuEnds>(group.device());
  }

  WorkPtr allreduce(Tensors& tensors, const AllreduceOptions& options) override {
    const Tensor* const first = tensors.empty() ? nullptr : tensors.data();
    const int64_t number = count_.fetch_add(1) + 1;
    const auto record = std::make_shared<CallRecord>(name_.c_str(), "all_reduce", number, first);
    try {
      auto work = C10dGroup::allreduce(tensors, options);
      if (gpu_ends_ && first != nullptr && first->is_cuda()) {
        gpu_ends_->end_with(std::move(*record), work);  // a bucket stays in memory anyway
        group_.watch("all_reduce of gradients", number, work);
      } else {
        const auto end = [record](c10::ivalue::Future& future) {
          record->end(future.hasError());
        };
        work->getFuture()->addCallback(end, /*uses_future=*/false);
      }
      return work;
    } catch (...) {
      record->end(/*failed=*/true);
      throw;
    }
  }

  // Of the order of the gradients, before buckets are built anew.
  WorkPtr broadcast(Tensors& tensors, const BroadcastOptions& options) override {
    auto work = C10dGroup::broadcast(tensors, options);
    if (gpu_ends_)
      group_.watch("broadcast of the order of gradients", /*number=*/-1, work);
    return work;
  }

 private:
  const muster::ProcessGroup group_;
  const std::string name_;
  std::atomic<int64_t>& count_;
  std::unique_ptr<GpuEnds> gpu_ends_;
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> recorded_group(const ProcessGroup& group) {
  const Capabilities& can = capabilities_of(group.backend());
  if (can.records_calls || (Activity::get() == nullptr && !can.on_gpus))
    return group.c10d();
  const std::string& name =
      group.c10d()->getBackend(kCPU)->getGroupDesc();  // make_group.cc gives it
  return c10::make_intrusive<RecordedGroup>(group, cat(name, " gradients"));
}

}  // namespace muster
