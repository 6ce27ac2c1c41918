// GPUs for LibTorch that are memory of this host, so that what is done with tensors on GPUs is
// tested with none. They are as hard on their user as true ones, or harder, and alike in every run:
// what is not waited for (fake_streams.h) is an error or a wrong value; memory is out of the host's
// reach, and used on the streams that it is for (fake_memory.h); copies that nobody waits for are
// late (fake_copies.h). Registered when the library is loaded, as LibTorch's CUDA part is.
#include "tests/cuda/fake_gpu.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/cuda/fake_copies.h"
#include "tests/cuda/fake_memory.h"
#include "tests/cuda/fake_streams.h"

namespace muster::testing {

namespace {

at::DeviceIndex count() noexcept {
  return static_cast<at::DeviceIndex>(num_fake_gpus());
}

void let_host_wait_for(at::DeviceIndex gpu) {
  let_host_wait(record_all_of({at::kCUDA, gpu}));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::kCUDA; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device before = getDevice();
    setDevice(device);
    return before;
  }
  at::Device getDevice() const override { return current_gpu(); }
  void setDevice(at::Device device) const override {
    uncheckedSetDevice(device);
    begin_context(current_gpu().index());
  }
  void uncheckedSetDevice(at::Device device) const noexcept override {
    if (device.has_index())
      set_current_gpu(device.index());
  }
  at::DeviceIndex deviceCount() const noexcept override { return count(); }

  c10::Stream getStream(at::Device device) const override { return current_stream(device); }
  c10::Stream getDefaultStream(at::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getNewStream(at::Device device, int) const override { return new_stream(device); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool = false) const override {
    return stream_of_pool(device.has_index() ? device : current_gpu());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_on_stream(memory, stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return is_over(testing::record(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    let_host_wait(testing::record(stream));
  }
  void synchronizeDevice(at::DeviceIndex gpu) const override {
    const GoesBack back("synchronizeDevice");
    let_host_wait_for(gpu);
  }
  // LibTorch 2.11 cannot be asked.
  virtual bool isStreamCapturing(const c10::Stream& stream) const {
    return capture_of(stream) != 0;
  }

  // An event is what was recorded last.
  void record(void** event,
              const c10::Stream& stream,
              at::DeviceIndex,
              c10::EventFlag) const override {
    const GoesBack back("an event that is recorded");
    if (*event == nullptr)
      *event = new Recorded;
    recorded(*event) = testing::record(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr)
      return;
    const GoesBack back("a stream that waits for an event");
    testing::block(recorded(event), stream);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_over(recorded(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr)
      let_host_wait(recorded(event));
  }
  void destroyEvent(void* event, at::DeviceIndex) const noexcept override {
    if (event == nullptr)
      return;
    const GoesBack back("an event that goes");
    delete static_cast<Recorded*>(event);
  }

 private:
  static Recorded& recorded(void* event) { return *static_cast<Recorded*>(event); }
};

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex gpu) const override { return has_context(gpu); }
  at::DeviceIndex deviceCount() const override { return count(); }
  int getNumGPUs() const override { return num_fake_gpus(); }
  void deviceSynchronize(at::DeviceIndex gpu) const override { let_host_wait_for(gpu); }
  at::DeviceIndex current_device() const override { return current_gpu().index(); }
  at::DeviceIndex getCurrentDevice() const override { return current_gpu().index(); }
  const at::Generator& getDefaultGenerator(at::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  at::Generator getNewGenerator(at::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* at) const override { return is_pinned(at); }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)

}  // namespace

void set_fake_gpu(int ordinal) {
  const auto gpu = static_cast<c10::DeviceIndex>(ordinal);
  set_current_gpu(gpu);
  begin_context(gpu);
}

}  // namespace muster::testing
