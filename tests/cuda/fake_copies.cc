#include "tests/cuda/fake_copies.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/alloc_cpu.h>

#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/cuda/fake_graph.h"

namespace muster::testing {

namespace {

// Page-locked memory, which is the host's, and known.
class PinnedMemory : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const address = c10::alloc_cpu(bytes);
    if (address != nullptr) {
      const std::lock_guard lock(mutex_);
      ends_[address] = static_cast<std::byte*>(address) + bytes;
    }
    return {address, address, &PinnedMemory::free, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedMemory::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool has(const void* at) {
    const std::lock_guard lock(mutex_);
    const auto after = ends_.upper_bound(at);
    return after != ends_.begin() && at < std::prev(after)->second;
  }

 private:
  static void free(void* address);

  std::mutex mutex_;
  std::map<const void*, const void*> ends_;
};

PinnedMemory& pinned_memory() {
  static auto* const memory = new PinnedMemory;  // tensors may outlive everything
  return *memory;
}

void PinnedMemory::free(void* address) {
  if (address != nullptr) {
    const std::lock_guard lock(pinned_memory().mutex_);
    pinned_memory().ends_.erase(address);
  }
  c10::free_cpu(address);
}

// Between tensors on the host, of which one may have a GPU's values.
void copy_now(const at::Tensor& to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  to.copy_(from);
}

struct LateCopy {
  at::Tensor to, from;  // both on the host, or in a GPU's pages
  bool to_gpu;
  Operation operation;
  std::thread::id thread = std::this_thread::get_id();
};

bool touch(const LateCopy& one, const LateCopy& other) {
  const Range to = range_of(one.to);
  return overlap(to, range_of(other.to)) || overlap(to, range_of(other.from)) ||
         overlap(range_of(one.from), range_of(other.to));
}

class LateCopies {
 public:
  void add(LateCopy late) {
    const std::lock_guard lock(mutex_);
    late_.push_back(std::move(late));
  }

  template <class IsDue>
  void make(IsDue&& is_due) {
    const std::lock_guard lock(mutex_);
    for (bool found = true; found;) {
      found = false;
      for (auto late = late_.begin(); late != late_.end() && !found; ++late) {
        if (!is_due(*late))
          continue;
        make_with_earlier(late);
        found = true;
      }
    }
  }

 private:
  using Place = std::list<LateCopy>::iterator;

  // What it comes behind on the GPU, in the same memory, comes first.
  void make_with_earlier(Place late) {
    for (bool found = true; found;) {
      found = false;
      for (auto earlier = late_.begin(); earlier != late && !found; ++earlier) {
        if (!late->operation.knows.knows(earlier->operation.at) || !touch(*late, *earlier))
          continue;
        make_with_earlier(earlier);
        found = true;
      }
    }
    copy_now(late->to, late->from);
    late_.erase(late);
  }

  std::mutex mutex_;
  std::list<LateCopy> late_;  // in the order of their launch
};

LateCopies& late_copies() {
  static auto* const late = new LateCopies;  // never destroyed, as a GPU's
  return *late;
}

// Those that a copy comes behind on its stream, in the host's memory that it uses.
void make_late_copies_before(const Operation& operation, const at::Tensor& on_host) {
  const Range range = range_of(on_host);
  late_copies().make([&](const LateCopy& late) {
    return operation.knows.knows(late.operation.at) &&
           overlap(range, range_of(late.to_gpu ? late.from : late.to));
  });
}

// Whether LibTorch has no copy of its own in between, which would lie in other memory.
bool is_direct(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
         one.is_contiguous() && other.is_contiguous() && one.is_conj() == other.is_conj() &&
         one.is_neg() == other.is_neg();
}

// Where the copy is not waited for it is late: then the tensors themselves are kept. Otherwise the
// host waits, also for memory that is not page-locked: the driver does then.
void copy_to_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const Operation operation = launch("a copy to the host", current_stream(from.device()));
  if (operation.capture != 0)
    refuse_in_capture(operation.capture, "a copy to the host");
  const at::Tensor values = values_of(from, operation, Use::read);
  if (non_blocking && is_direct(to, from) && is_pinned(to.data_ptr())) {
    late_copies().add({to.detach(), values.clone(), /*to_gpu=*/false, operation});
    return;
  }
  make_late_copies_before(operation, to);
  copy_now(to, values);
  let_host_wait(operation);
}

// The driver copies memory that is not page-locked elsewhere before it returns.
void copy_from_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const Operation operation = launch("a copy from the host", current_stream(to.device()));
  const at::Tensor values = values_of(to, operation, Use::write);
  if (FakeGraph* const graph = graph_of(operation.capture)) {
    if (!non_blocking || !is_direct(to, from) || !is_pinned(from.data_ptr()))
      refuse_in_capture(operation.capture, "a copy from memory of the host that is not pinned");
    graph->add([to = by_address(to), from]() mutable { copy(to, from, /*non_blocking=*/true); });
    return copy_now(values, from);
  }
  if (non_blocking && is_direct(to, from) && is_pinned(from.data_ptr())) {
    late_copies().add({values, from.detach(), /*to_gpu=*/true, operation});
    return;
  }
  make_late_copies_before(operation, from);
  copy_now(values, from);
  if (!non_blocking)
    let_host_wait(operation);
}

// On the stream of the one it comes from, as LibTorch does: it waits for the other's stream, which
// then waits for it.
void copy_between_gpus(const at::Tensor& to, const at::Tensor& from) {
  const c10::Stream of_from = current_stream(from.device());
  const c10::Stream of_to = current_stream(to.device());
  block(record(of_to), of_from);
  const Operation reading = launch("a copy to another GPU", of_from);
  block(record(of_from), of_to);
  const Operation writing = launch("a copy from another GPU", of_to);
  copy_now(values_of(to, writing, Use::write), values_of(from, reading, Use::read));
}

}  // namespace

c10::Allocator& pinned_allocator() {
  return pinned_memory();
}

bool is_pinned(const void* at) {
  return pinned_memory().has(at);
}

at::Tensor values_of(const at::Tensor& tensor, const Operation& operation, Use use) {
  at::Tensor found = reach(tensor, operation, use);
  if (tensor.is_conj() != found.is_conj())
    found = found.conj();
  if (tensor.is_neg() != found.is_neg())
    found = found._neg_view();
  return found;
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.numel() == 0)
    return to;
  if (!from.is_cuda()) {
    copy_from_host(to, from, non_blocking);
  } else if (!to.is_cuda()) {
    copy_to_host(to, from, non_blocking);
  } else if (to.device() != from.device()) {
    copy_between_gpus(to, from);
  } else {
    const Operation operation = launch("copy_", current_stream(to.device()));
    const at::Tensor values = values_of(from, operation, Use::read);
    copy_now(values_of(to, operation, Use::write), values);
    if (FakeGraph* const graph = graph_of(operation.capture)) {
      graph->add([to = by_address(to), from = by_address(from)]() mutable {
        copy(to, from, /*non_blocking=*/true);
      });
    }
  }
  return to;
}

void make_late_copies(const VectorClock& clock, bool of_this_thread) {
  late_copies().make([&](const LateCopy& late) {
    const bool asks = !of_this_thread || late.thread == std::this_thread::get_id();
    return asks && clock.knows(late.operation.at);
  });
}

void make_late_copies_to(const Range& pages) {
  late_copies().make(
      [&](const LateCopy& late) { return late.to_gpu && overlap(pages, range_of(late.to)); });
}

}  // namespace muster::testing
