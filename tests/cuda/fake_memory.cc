#include "tests/cuda/fake_memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Backtrace.h>
#include <c10/util/Exception.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/cuda/fake_block.h"
#include "tests/cuda/fake_copies.h"
#include "tests/cuda/fake_graph.h"

namespace muster::testing {

namespace {

thread_local c10::DeviceIndex current = 0;
std::array<std::atomic<bool>, kMaxGpus> contexts{};

// With FAKE_CUDA_STACKS it also says where.
[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  if (get_env("FAKE_CUDA_STACKS"))
    std::fprintf(stderr, "%s\n", c10::get_backtrace().c_str());
  throw Error(ErrorCode::internal, what);
}

// As LibTorch has it: "2.00 GiB".
std::string amount(size_t bytes) {
  const bool many = bytes >= size_t{1} << 30;
  std::array<char, 32> text{};
  std::snprintf(text.data(),
                text.size(),
                "%.2f %s",
                static_cast<double>(bytes) / (many ? 1 << 30 : 1 << 20),
                many ? "GiB" : "MiB");
  return text.data();
}

// What a GPU has: no limit where FAKE_CUDA_MEMORY does not say how many bytes.
size_t capacity() {
  static const size_t bytes = [] {
    const auto told = parse_int(get_env("FAKE_CUDA_MEMORY").value_or(""));
    return told ? static_cast<size_t>(*told) : SIZE_MAX;
  }();
  return bytes;
}

class GpuMemory : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device gpu = current_gpu();
    begin_context(gpu.index());
    if (bytes == 0)
      return {nullptr, nullptr, &GpuMemory::free, gpu};  // as LibTorch has it
    auto block = make_block(gpu, bytes);
    std::byte* const address = block->address();
    const std::lock_guard lock(mutex_);
    FakeGraph* const graph = graph_of(capture_of(current_stream(gpu)));
    if (graph != nullptr)
      graph->own(address, block);
    blocks_[address] = {std::move(block), gpu, /*of_graph=*/graph != nullptr};
    return {address, address, &GpuMemory::free, gpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &GpuMemory::free; }
  void copy_data(void*, const void*, size_t) const override {
    throw Error(ErrorCode::internal, "fake GPU: copy_data is not for its memory");
  }

  std::shared_ptr<Block> block_of(const void* at) {
    const std::lock_guard lock(mutex_);
    return find(at);
  }

  void release_of_graph(std::byte* address) {
    std::shared_ptr<Block> gone;
    const std::lock_guard lock(mutex_);
    const auto held = blocks_.find(address);
    if (held == blocks_.end())
      return;
    held->second.of_graph = false;
    if (held->second.freed)
      gone = erase(held);
  }

  void record(const void* at, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    find(at)->streams().insert(stream.id());
  }

  // Notes the use of some ranges of a block's, from its begin.
  void note(Block& block,
            const std::vector<std::pair<size_t, size_t>>& ranges,
            const Operation& operation,
            Use use) {
    const std::lock_guard lock(mutex_);
    if (!block.streams().contains(operation.at.stream.id())) {
      refuse(cat("fake GPU: ",
                 operation.name,
                 ": expected memory to be used on its stream(s) ",
                 join(block.streams(), ", "),
                 ", got stream ",
                 operation.at.stream.id(),
                 " (record_stream() tells the allocator)"));
    }
    for (const auto& [begin, end] : ranges) {
      const std::string wrong = use == Use::read ? block.uses().read(begin, end, operation)
                                                 : block.uses().write(begin, end, operation);
      if (!wrong.empty())
        refuse(wrong);
    }
  }

 private:
  struct Held {
    std::shared_ptr<Block> block;
    c10::Device gpu = c10::kCUDA;
    bool of_graph = false;  // which keeps it
    bool freed = false;     // meanwhile
  };

  [[noreturn]] static void run_out(c10::Device gpu, size_t bytes, size_t left) {
    TORCH_CHECK_WITH(OutOfMemoryError,
                     false,
                     "CUDA out of memory. Tried to allocate ",
                     amount(bytes),
                     ". GPU ",
                     static_cast<int>(gpu.index()),
                     " has a total capacity of ",
                     amount(capacity()),
                     " of which ",
                     amount(left),
                     " is free.");
  }

  // Where the host has no memory for it, the GPU is full too.
  std::shared_ptr<Block> make_block(c10::Device gpu, size_t bytes) {
    const std::lock_guard lock(mutex_);
    size_t& used = used_.at(static_cast<size_t>(gpu.index()));
    if (bytes > capacity() || used > capacity() - bytes)
      run_out(gpu, bytes, capacity() - used);
    try {
      auto block = std::make_shared<Block>(bytes, current_stream(gpu));
      used += bytes;
      return block;
    } catch (const Error&) {
      run_out(gpu, bytes, 0);
    }
  }

  std::shared_ptr<Block> find(const void* at) {
    const auto* const byte = static_cast<const std::byte*>(at);
    const auto after = blocks_.upper_bound(const_cast<std::byte*>(byte));
    if (after == blocks_.begin() || !std::prev(after)->second.block->has(byte))
      refuse("fake GPU: expected memory of a GPU, got an address that it has not");
    return std::prev(after)->second.block;
  }

  static void free(void* address);
  // The caller has the lock, and lets the pages go without it.
  std::shared_ptr<Block> erase(std::map<std::byte*, Held>::iterator held) {
    auto block = held->second.block;
    used_.at(static_cast<size_t>(held->second.gpu.index())) -= block->bytes();
    blocks_.erase(held);
    return block;
  }

  std::mutex mutex_;
  std::map<std::byte*, Held> blocks_;
  std::array<size_t, kMaxGpus> used_{};  // by GPU
};

GpuMemory& gpu_memory() {
  static auto* const memory = new GpuMemory;  // tensors may outlive everything
  return *memory;
}

// The pages go when nothing that is under way uses them any more.
void GpuMemory::free(void* address) {
  if (address == nullptr)
    return;
  GpuMemory& memory = gpu_memory();
  std::shared_ptr<Block> gone;
  const std::lock_guard lock(memory.mutex_);
  const auto held = memory.blocks_.find(static_cast<std::byte*>(address));
  held->second.freed = true;
  if (!held->second.of_graph)
    gone = memory.erase(held);
}

std::byte* first_value(const Block& block, const at::Tensor& tensor) {
  const auto* const storage = static_cast<const std::byte*>(tensor.storage().data());
  return block.pages() + (storage - block.address()) + tensor.storage_offset() * tensor.itemsize();
}

}  // namespace

bool overlap(const Range& one, const Range& other) {
  return one.begin < other.end && other.begin < one.end;
}

Range range_of(const at::Tensor& on_host) {
  auto* const begin = static_cast<std::byte*>(on_host.data_ptr());
  int64_t last = 0;
  for (int64_t dim = 0; dim < on_host.dim(); ++dim)
    last += (on_host.size(dim) - 1) * on_host.stride(dim);
  return {begin, begin + (last + 1) * on_host.itemsize()};
}

c10::Allocator& gpu_allocator() {
  return gpu_memory();
}

c10::Device current_gpu() {
  return {c10::kCUDA, current};
}

void set_current_gpu(c10::DeviceIndex ordinal) noexcept {
  current = ordinal;
}

void begin_context(c10::DeviceIndex ordinal) noexcept {
  contexts.at(static_cast<size_t>(ordinal)) = true;
}

bool has_context(c10::DeviceIndex ordinal) noexcept {
  return contexts.at(static_cast<size_t>(ordinal));
}

GoesBack::~GoesBack() {
  if (has_context(own_))
    return;
  std::fprintf(stderr,
               "fake GPU: %s makes a context on cuda:%d, which this process does not use (a "
               "DeviceGuard around it "
               "goes back without one)\n",
               what_,
               static_cast<int>(own_));
  begin_context(own_);
}

void record_on_stream(const c10::DataPtr& memory, const c10::Stream& stream) {
  if (memory.get() != nullptr)
    gpu_memory().record(memory.get(), stream);
}

void release_of_graph(std::byte* address) {
  gpu_memory().release_of_graph(address);
}

at::Tensor reach(const at::Tensor& tensor, const Operation& operation, Use use) {
  if (tensor.numel() == 0)
    return at::from_blob(
        nullptr, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  const auto block = gpu_memory().block_of(tensor.storage().data());
  gpu_memory().note(*block, block->ranges_of(tensor), operation, use);
  at::Tensor found = at::from_blob(
      first_value(*block, tensor),
      tensor.sizes(),
      tensor.strides(),
      [block](void*) {},
      tensor.options().device(at::kCPU));
  make_late_copies_to(range_of(found));
  FakeGraph* const graph = graph_of(operation.capture);
  if (graph != nullptr && use == Use::write)
    graph->save(block);
  return found;
}

Spoilable::Spoilable(const at::Tensor& on_gpu) {
  if (on_gpu.numel() == 0)
    return;
  const auto block = gpu_memory().block_of(on_gpu.storage().data());
  block_ = block;
  for (const auto& [begin, end] : block->ranges_of(on_gpu))
    ranges_.push_back({block->pages() + begin, block->pages() + end});
}

// All bits are set: a NaN, or a -1.
void Spoilable::spoil() const {
  const auto block = block_.lock();
  if (!block)
    return;
  for (const Range& range : ranges_)
    std::memset(range.begin, 0xff, range.end - range.begin);
}

}  // namespace muster::testing
