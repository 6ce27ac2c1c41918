// A stand-in for the library muster_cuda, so that what happens to devices is tested with no GPU: as
// many GPUs as FAKE_CUDA lists by UUID, or those of them that CUDA_VISIBLE_DEVICES shows. It says
// each device that is made current on standard error. Their memory is that of fake_gpu.cc, and
// their NCCL shared memory.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "muster/base/env.h"
#include "muster/base/strings.h"
#include "muster/comm/call/record.h"
#include "muster/comm/hierarchical/forwarding_backend.h"
#include "muster/comm/nccl/plugin.h"
#include "muster/comm/shm/backend.h"
#include "tests/cuda/fake_gpu.h"

namespace {

// As NCCL has it: wait() does not block the host, the future has its value at once, and sums are
// over when all ranks have come.
class WorkOfAGpu : public c10d::Work {
 public:
  WorkOfAGpu(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors)
      : work_(std::move(work)), tensors_(std::move(tensors)) {}
  bool isCompleted() override { return work_->isCompleted() && work_->isSuccess(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    muster::testing::let_current_stream_wait(work_, gpu());
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const c10::StreamGuard on_its_own(
        c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(gpu(), false));
    muster::testing::let_current_stream_wait(work_, gpu());
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{gpu()});
    future->markCompleted(c10::IValue(tensors_));
    return future;
  }

 private:
  c10::Device gpu() const { return tensors_.front().device(); }

  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;
};

class AsOnAGpu : public muster::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto asynchronous = options;
    asynchronous.asyncOp = true;
    muster::CallRecord none;
    const muster::OuterRecord hidden(none);  // NCCL writes nothing down itself
    return c10::make_intrusive<WorkOfAGpu>(ForwardingBackend::allreduce(tensors, asynchronous),
                                           tensors);
  }
  void abort() override { std::fprintf(stderr, "nccl: aborted\n"); }
};

std::vector<std::string> uuids() {
  const std::vector<std::string> all =
      muster::split(muster::get_env("FAKE_CUDA").value_or(""), ',');
  const char* mask = std::getenv("CUDA_VISIBLE_DEVICES");
  if (mask == nullptr)
    return all;
  std::vector<std::string> seen;
  for (const std::string& entry : muster::split(mask, ',')) {
    const auto index = muster::parse_int(entry);
    seen.push_back(index ? all.at(static_cast<size_t>(*index)) : entry);
  }
  return seen;
}

void set_device(int ordinal) {
  std::fprintf(stderr, "current: cuda:%d\n", ordinal);
  muster::testing::set_fake_gpu(ordinal);
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const muster::NcclGroup& group) {
  std::fprintf(stderr,
               "nccl: rank %d of %s%s%s, of the job's ranks %s\n",
               group.rank,
               group.name.c_str(),
               group.parent ? ", split" : "",
               group.options.high_priority_stream ? ", high priority" : "",
               muster::join(group.ranks_of_job, ",").c_str());
  auto backend = muster::make_shm(store, group.rank, group.size, group.timeout);
  if (muster::get_env("FAKE_NCCL_WAITS"))
    return c10::make_intrusive<AsOnAGpu>(std::move(backend));
  return backend;
}

void stay_out_of_split(c10d::Backend& /*parent*/, int /*ordinal*/) {
  std::fprintf(stderr, "nccl: stays out of a split\n");
}

constexpr muster::CudaPlugin kFake{
    .device_count = muster::testing::num_fake_gpus,
    .set_device = set_device,
    .begin_thread = [](int /*ordinal*/) {},
    .device_uuid = [](int ordinal) { return uuids().at(static_cast<size_t>(ordinal)); },
    .nccl_version = [] { return std::string("0.0.0"); },
    .make_nccl = make_nccl,
    .stay_out_of_split = stay_out_of_split};

}  // namespace

int muster::testing::num_fake_gpus() {
  return static_cast<int>(uuids().size());
}

extern "C" __attribute__((visibility("default"))) const muster::CudaPlugin* muster_cuda_plugin() {
  return &kFake;
}
