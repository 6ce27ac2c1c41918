// Keeps the memory of batches that are gone. LibTorch itself says when the last tensor and view of
// it are gone, on whatever thread. A tensor knows its loader weakly: what outlives the loader is
// freed.
#include "muster/data/batch_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "muster/base/divided_up.h"
#include "muster/base/lock.h"
#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

// Below it the C library reuses memory as well.
constexpr size_t kLeastBytes = size_t{64} << 10;

thread_local UseOfBatchMemory* t_use = nullptr;

// A tensor may ask for more memory later (resize_), when its loader is gone, on any thread.
class MemoryOfThisThread final : public c10::Allocator {
 public:
  static MemoryOfThisThread& get() {
    static auto* const allocator = new MemoryOfThisThread();  // tensors may outlive what is static
    return *allocator;
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (t_use == nullptr || bytes < kLeastBytes)
      return c10::GetCPUAllocator()->allocate(bytes);
    return t_use->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// In steps of at most an eighth, so that batches of like lengths can have each other's memory.
size_t block_size(size_t bytes) {
  const size_t step = std::max(std::bit_floor(bytes) / 8, size_t{1});
  return rounded_up(bytes, step);
}

}  // namespace

// The smallest that is large enough, if it is not twice as large; of alike ones the last, which may
// still be in the processor's cache.
BatchMemory::Block BatchMemory::spare_block(size_t bytes) {
  const Lock lock(mutex_);
  auto best = spare_.end();
  for (auto block = spare_.begin(); block != spare_.end(); ++block) {
    const bool fits = block->size >= bytes && block->size / 2 <= bytes;
    if (fits && (best == spare_.end() || block->size <= best->size))
      best = block;
  }
  if (best == spare_.end())
    return {};
  Block found = std::move(*best);
  spare_.erase(best);
  return found;
}

c10::DataPtr BatchMemory::allocate(size_t bytes) {
  Block block = spare_block(bytes);
  if (!block.data) {
    block.size = block_size(bytes);
    block.data = c10::GetCPUAllocator()->allocate(block.size);
  }
  void* const data = block.data.get();
  const auto leased = std::make_shared<Block>(std::move(block));
  return c10::InefficientStdFunctionContext::makeDataPtr(
      data,
      [from = weak_from_this(), leased](void*) {
        if (const auto memory = from.lock())
          memory->keep(std::move(*leased));
      },
      kCPU);
}

void BatchMemory::note_batch(size_t bytes) {
  const Lock lock(mutex_);
  largest_batch_ = std::max(largest_batch_, bytes);
}

// What was kept longest goes: it has not been needed since. It is freed without the lock.
void BatchMemory::keep(Block block) {
  std::vector<Block> gone;
  const Lock lock(mutex_);
  spare_.push_back(std::move(block));
  size_t bytes = sum_of<size_t>(spare_, &Block::size);
  auto first = spare_.begin();
  for (; bytes > most_spare_ * largest_batch_; ++first)
    bytes -= first->size;
  gone.assign(std::make_move_iterator(spare_.begin()), std::make_move_iterator(first));
  spare_.erase(spare_.begin(), first);
}

size_t BatchMemory::spare_bytes() const {
  const Lock lock(mutex_);
  return sum_of<size_t>(spare_, &Block::size);
}

UseOfBatchMemory::UseOfBatchMemory(BatchMemory& memory)
    : memory_(memory), before_(std::exchange(t_use, this)) {}

UseOfBatchMemory::~UseOfBatchMemory() {
  t_use = before_;
}

c10::DataPtr UseOfBatchMemory::allocate(size_t bytes) {
  bytes_ += block_size(bytes);
  memory_.note_batch(bytes_);
  return memory_.allocate(bytes);
}

bool has_batch_memory_for(const Tensor& source) {
  return t_use != nullptr && !c10::GradMode::is_enabled() && source.is_cpu() &&
         source.layout() == kStrided && !source.is_quantized();
}

Tensor batch_tensor(const at::TensorOptions& options) {
  auto tensor = at::empty({0}, options);
  if (t_use != nullptr && tensor.is_cpu() && !options.pinned_memory())
    tensor.set_(c10::Storage(c10::Storage::use_byte_size_t(),
                             0,
                             MemoryOfThisThread::get().allocate(0),
                             &MemoryOfThisThread::get(),
                             /*resizable=*/true));
  return tensor;
}

}  // namespace muster
