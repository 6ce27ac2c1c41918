#include "tests/cuda/fake_memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/cuda/fake_copies.h"
#include "tests/cuda/fake_uses.h"

namespace muster::testing {

// Two views of the same pages, of which LibTorch is given the one that nobody may touch.
class Block {
 public:
  Block(size_t bytes, const c10::Stream& stream) : bytes_(bytes), streams_{stream.id()} {
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
  size_t bytes() const { return bytes_; }
  bool has(const std::byte* at) const { return at >= untouchable_ && at < untouchable_ + bytes_; }
  std::byte* pages() const { return pages_; }
  std::set<c10::StreamId>& streams() { return streams_; }
  Uses& uses() { return uses_; }

 private:
  std::byte* map(int file, int protection) const {
    void* const at = ::mmap(nullptr, bytes_, protection, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
      fail_errno("fake GPU: mmap", errno);
    return static_cast<std::byte*>(at);
  }

  const size_t bytes_;
  std::set<c10::StreamId> streams_;
  Uses uses_;
  std::byte* untouchable_ = nullptr;
  std::byte* pages_ = nullptr;
};

namespace {

thread_local c10::DeviceIndex current = 0;

// A view in more pieces counts with its first and its last: that refuses no right program.
constexpr int64_t kMostPieces = 4096;

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
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
  c10::DataPtr allocate(size_t asked) override {
    const c10::Device gpu = current_gpu();
    const size_t bytes = std::max<size_t>(asked, 1);
    take(gpu, bytes);
    auto block = std::make_shared<Block>(bytes, current_stream(gpu));
    std::byte* const address = block->address();
    const std::lock_guard lock(mutex_);
    blocks_[address] = {std::move(block), gpu};
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
  };

  void take(c10::Device gpu, size_t bytes) {
    const std::lock_guard lock(mutex_);
    size_t& used = used_.at(static_cast<size_t>(gpu.index()));
    if (bytes > capacity() || used > capacity() - bytes) {
      TORCH_CHECK_WITH(OutOfMemoryError,
                       false,
                       "CUDA out of memory. Tried to allocate ",
                       amount(bytes),
                       ". GPU ",
                       static_cast<int>(gpu.index()),
                       " has a total capacity of ",
                       amount(capacity()),
                       " of which ",
                       amount(capacity() - used),
                       " is free.");
    }
    used += bytes;
  }

  std::shared_ptr<Block> find(const void* at) {
    const auto* const byte = static_cast<const std::byte*>(at);
    const auto after = blocks_.upper_bound(const_cast<std::byte*>(byte));
    if (after == blocks_.begin() || !std::prev(after)->second.block->has(byte))
      refuse("fake GPU: expected memory of a GPU, got an address that it has not");
    return std::prev(after)->second.block;
  }

  static void free(void* address);

  std::mutex mutex_;
  std::map<std::byte*, Held> blocks_;
  std::array<size_t, 8> used_{};  // by GPU
};

GpuMemory& gpu_memory() {
  static auto* const memory = new GpuMemory;  // tensors may outlive everything
  return *memory;
}

// The pages go when nothing that is under way uses them any more.
void GpuMemory::free(void* address) {
  GpuMemory& memory = gpu_memory();
  std::shared_ptr<Block> gone;
  const std::lock_guard lock(memory.mutex_);
  const auto held = memory.blocks_.find(static_cast<std::byte*>(address));
  gone = held->second.block;
  memory.used_.at(static_cast<size_t>(held->second.gpu.index())) -= gone->bytes();
  memory.blocks_.erase(held);
}

// The bytes of a tensor's values, from the begin of its block: one range for each piece of memory
// without a gap.
std::vector<std::pair<size_t, size_t>> ranges_in(const Block& block, const at::Tensor& tensor) {
  struct Dim {
    int64_t stride, size;
  };
  std::vector<Dim> dims;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) != 0)
      dims.push_back({tensor.stride(dim), tensor.size(dim)});
  }
  std::ranges::sort(dims, {}, &Dim::stride);
  int64_t piece = 1;
  size_t inner = 0;
  for (; inner < dims.size() && dims[inner].stride <= piece; ++inner)
    piece += (dims[inner].size - 1) * dims[inner].stride;
  std::vector<int64_t> begins{0};
  for (; inner < dims.size(); ++inner) {
    const auto [stride, size] = dims[inner];
    const int64_t last = begins.back() + (size - 1) * stride;
    if (std::ssize(begins) * size > kMostPieces) {
      begins = {0, last};
      continue;
    }
    const std::vector<int64_t> row = begins;
    for (int64_t i = 1; i < size; ++i) {
      for (const int64_t begin : row)
        begins.push_back(begin + i * stride);
    }
  }
  const size_t storage = static_cast<const std::byte*>(tensor.storage().data()) - block.address();
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const int64_t begin : begins) {
    const size_t first = storage + (tensor.storage_offset() + begin) * tensor.itemsize();
    ranges.emplace_back(first, first + piece * tensor.itemsize());
  }
  return ranges;
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

void record_on_stream(const c10::DataPtr& memory, const c10::Stream& stream) {
  if (memory.get() != nullptr)
    gpu_memory().record(memory.get(), stream);
}

at::Tensor reach(const at::Tensor& tensor, const Operation& operation, Use use) {
  if (tensor.numel() == 0)
    return at::from_blob(
        nullptr, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  const auto block = gpu_memory().block_of(tensor.storage().data());
  gpu_memory().note(*block, ranges_in(*block, tensor), operation, use);
  at::Tensor found = at::from_blob(
      first_value(*block, tensor),
      tensor.sizes(),
      tensor.strides(),
      [block](void*) {},
      tensor.options().device(at::kCPU));
  make_late_copies_to(range_of(found));
  return found;
}

Spoilable::Spoilable(const at::Tensor& on_gpu) {
  if (on_gpu.numel() == 0)
    return;
  const auto block = gpu_memory().block_of(on_gpu.storage().data());
  block_ = block;
  for (const auto& [begin, end] : ranges_in(*block, on_gpu))
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
