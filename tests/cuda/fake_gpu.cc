// GPUs for LibTorch that are memory of this host, so that what is done with tensors on GPUs is
// tested with none. They are as hard on their user as true ones: their memory is out of the host's
// reach but by a copy of LibTorch's, and it is used on the stream that it was made on or has been
// recorded on, any other being an error. All operations but copies are LibTorch's own on the CPU.
// Registered when the library is loaded, as LibTorch's CUDA part is.
#include "tests/cuda/fake_gpu.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster::testing {

namespace {

constexpr c10::DeviceIndex kMaxGpus = 8;

thread_local c10::DeviceIndex current_gpu = 0;
thread_local std::array<c10::StreamId, kMaxGpus> current_streams{};

// A block of a GPU's memory: two views of the same pages, of which LibTorch is given the one that
// nobody may touch.
class Block {
 public:
  explicit Block(size_t bytes)
      : bytes_(std::max<size_t>(bytes, 1)), streams_{current_streams.at(current_gpu)} {
    const int file = ::memfd_create("fake_gpu", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes_)) != 0)
      fail_errno("fake GPU: memfd_create", errno);
    untouchable_ = map(file, PROT_NONE);
    pages_ = map(file, PROT_READ | PROT_WRITE);
    ::close(file);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    ::munmap(untouchable_, bytes_);
    ::munmap(pages_, bytes_);
  }

  std::byte* address() const { return untouchable_; }
  std::set<c10::StreamId>& streams() { return streams_; }

  // Where the copy engine finds what is at `at`.
  std::byte* pages(const void* at) const {
    return pages_ + (static_cast<const std::byte*>(at) - untouchable_);
  }

 private:
  std::byte* map(int file, int protection) const {
    void* const at = ::mmap(nullptr, bytes_, protection, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
      fail_errno("fake GPU: mmap", errno);
    return static_cast<std::byte*>(at);
  }

  const size_t bytes_;
  std::set<c10::StreamId> streams_;
  std::byte* untouchable_ = nullptr;
  std::byte* pages_ = nullptr;
};

class GpuMemory : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>(bytes);
    std::byte* const address = block->address();
    const std::lock_guard lock(mutex_);
    blocks_[address] = std::move(block);
    return {address, address, &GpuMemory::free, c10::Device(c10::kCUDA, current_gpu)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &GpuMemory::free; }
  void copy_data(void*, const void*, size_t) const override {
    throw Error(ErrorCode::internal, "fake GPU: copy_data is not for its memory");
  }

  // Where the copy engine finds what is at `at`, for work on a stream.
  std::byte* pages(const void* at, c10::StreamId stream) {
    const std::lock_guard lock(mutex_);
    Block& block = block_of(at);
    if (block.streams().contains(stream))
      return block.pages(at);
    throw Error(ErrorCode::internal,
                cat("fake GPU: expected memory to be used on its stream(s) ",
                    join(block.streams(), ", "),
                    ", got stream ",
                    stream));
  }

  void record(const void* at, c10::StreamId stream) {
    const std::lock_guard lock(mutex_);
    block_of(at).streams().insert(stream);
  }

 private:
  Block& block_of(const void* at) {
    return *std::prev(
                blocks_.upper_bound(const_cast<std::byte*>(static_cast<const std::byte*>(at))))
                ->second;
  }
  static void free(void* address);

  std::mutex mutex_;
  std::map<std::byte*, std::unique_ptr<Block>> blocks_;
};

GpuMemory& gpu_memory() {
  static auto* const memory = new GpuMemory;  // tensors may outlive everything
  return *memory;
}

void GpuMemory::free(void* address) {
  const std::lock_guard lock(gpu_memory().mutex_);
  gpu_memory().blocks_.erase(static_cast<std::byte*>(address));
}

// The tensor as the copy engine has it: on the host.
at::Tensor reached(const at::Tensor& tensor) {
  if (!tensor.is_cuda())
    return tensor;
  const c10::StreamId stream = current_streams.at(static_cast<size_t>(tensor.device().index()));
  std::byte* const begin = gpu_memory().pages(tensor.storage().data(), stream);
  return at::from_blob(begin + tensor.storage_offset() * tensor.itemsize(),
                       tensor.sizes(),
                       tensor.strides(),
                       tensor.options().device(at::kCPU));
}

// Conjugated and negated as the tensor is.
at::Tensor values_of(const at::Tensor& tensor) {
  at::Tensor found = reached(tensor);
  if (tensor.is_conj() != found.is_conj())
    found = found.conj();
  if (tensor.is_neg() != found.is_neg())
    found = found._neg_view();
  return found;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool /*non_blocking*/) {
  values_of(self).copy_(values_of(from));
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes())
    to.resize_(from.sizes());
  return to.copy_(from);
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty(at::IntArrayRef size,
                 std::optional<at::ScalarType> type,
                 std::optional<at::Layout>,
                 std::optional<at::Device>,
                 std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &gpu_memory(), kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size,
                         at::IntArrayRef stride,
                         std::optional<at::ScalarType> type,
                         std::optional<at::Layout>,
                         std::optional<at::Device>,
                         std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &gpu_memory(), kKeys, c10::dtype_or_default(type));
}

at::Tensor as_strided(const at::Tensor& self,
                      at::IntArrayRef size,
                      at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

c10::Stream stream(at::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

// What the streams of all GPUs have been made to wait for. An event on one is over when all of that
// is.
using Waits = std::vector<c10::intrusive_ptr<c10d::Work>>;

class StreamWaits {
 public:
  Waits of(const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    return waits_[stream];
  }
  void add(const c10::Stream& stream, const Waits& more) {
    const std::lock_guard lock(mutex_);
    Waits& all = waits_[stream];
    std::erase_if(all, [](const auto& work) { return work->isCompleted(); });
    all.insert(all.end(), more.begin(), more.end());
  }

 private:
  std::mutex mutex_;
  std::unordered_map<c10::Stream, Waits> waits_;
};

StreamWaits& stream_waits() {
  static auto* const all = new StreamWaits;  // events may outlive everything
  return *all;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::kCUDA; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device before = getDevice();
    current_gpu = device.index();
    return before;
  }
  at::Device getDevice() const override { return {at::kCUDA, current_gpu}; }
  void setDevice(at::Device device) const override { current_gpu = device.index(); }
  void uncheckedSetDevice(at::Device device) const noexcept override {
    current_gpu = device.index();
  }
  at::DeviceIndex deviceCount() const noexcept override {
    return static_cast<at::DeviceIndex>(num_fake_gpus());
  }

  c10::Stream getStream(at::Device device) const override {
    return stream(device, current_streams.at(static_cast<size_t>(device.index())));
  }
  c10::Stream getDefaultStream(at::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(at::Device device, int) const override {
    return getStreamFromGlobalPool(device);
  }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool = false) const override {
    static std::atomic<c10::StreamId> made = 0;
    return stream(device, ++made);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_streams.at(static_cast<size_t>(stream.device_index())) = stream.id();
    return before;
  }

  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    if (memory.get() != nullptr)
      gpu_memory().record(memory.get(), stream.id());
  }

  // All has been done when a call returns, but what a stream waits for.
  void record(void** event,
              const c10::Stream& stream,
              at::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr)
      *event = new Waits;
    *static_cast<Waits*>(*event) = stream_waits().of(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr)
      stream_waits().add(stream, *static_cast<Waits*>(event));
  }
  bool queryEvent(void* event) const override {
    const auto& waits = *static_cast<Waits*>(event);
    return std::all_of(
        waits.begin(), waits.end(), [](const auto& work) { return work->isCompleted(); });
  }
  void destroyEvent(void* event, at::DeviceIndex) const noexcept override {
    delete static_cast<Waits*>(event);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(at::DeviceIndex) const override {}
};

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  at::DeviceIndex deviceCount() const override {
    return static_cast<at::DeviceIndex>(num_fake_gpus());
  }
  int getNumGPUs() const override { return num_fake_gpus(); }
  void deviceSynchronize(at::DeviceIndex) const override {}
  at::DeviceIndex current_device() const override { return current_gpu; }
  at::DeviceIndex getCurrentDevice() const override { return current_gpu; }
  const at::Generator& getDefaultGenerator(at::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  at::Generator getNewGenerator(at::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetDefaultCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return true; }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  gpu_memory().record(tensor.storage().data_ptr().get(), stream.id());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("view", at::native::view);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("resize_", at::native::resize_);
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("copy_", copy_);
  library.impl("record_stream", record_stream);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
}
TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

}  // namespace

void set_fake_gpu(int ordinal) {
  current_gpu = static_cast<c10::DeviceIndex>(ordinal);
}

void let_current_stream_wait(const c10::intrusive_ptr<c10d::Work>& work, c10::Device gpu) {
  stream_waits().add(c10::impl::VirtualGuardImpl(gpu.type()).getStream(gpu), {work});
}

}  // namespace muster::testing
