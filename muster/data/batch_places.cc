// Gives out the places of a batch's examples as storages of their own, each of which holds the
// batch's memory and notes that its place is taken. A place that only the example itself uses when
// the batch is joined becomes a part of the batch as it is. So a tensor that somebody has kept is
// never in a batch: the batch is then made anew elsewhere.
#include "muster/data/batch_places.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace muster {

namespace {

constexpr size_t kLeastExampleBytes = size_t{4} << 10;  // a smaller copy costs less than a place
constexpr size_t kMostSizes = 16;

thread_local BatchPlaces* t_batch_places = nullptr;

using TakenPlaces = std::shared_ptr<std::vector<std::atomic<bool>>>;

struct PlaceLease {
  c10::Storage batch;
  TakenPlaces taken;
  int64_t example;
};

void end_place_lease(void* given) {
  const std::unique_ptr<PlaceLease> lease(static_cast<PlaceLease*>(given));
  lease->taken->at(lease->example).store(false, std::memory_order_release);
}

at::Tensor tensor_on(c10::Storage storage, at::ScalarType type, at::IntArrayRef sizes) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKey::CPU, c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

// Only such tensors can be joined byte for byte.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg();
}

c10::Storage memory_of_strip(const LoaderMemory& loader, size_t bytes) {
  if (loader.pinned)
    return at::empty({static_cast<int64_t>(bytes)}, at::dtype(at::kByte).pinned_memory(true))
        .storage();
  return {c10::Storage::use_byte_size_t(),
          bytes,
          loader.batches->allocate(bytes),
          c10::GetCPUAllocator(),
          /*resizable=*/true};
}

}  // namespace

struct BatchPlaces::Strip {
  size_t bytes;  // of an example
  c10::Storage memory;
  TakenPlaces taken;
  bool joined = false;

  uint8_t* at(int64_t example) const {
    return static_cast<uint8_t*>(memory.mutable_data()) + static_cast<size_t>(example) * bytes;
  }
  bool is_taken(int64_t example) const {
    return taken->at(example).load(std::memory_order_acquire);
  }
  // Whether the example lies there, and nobody else has that memory.
  bool has(int64_t example, const at::Tensor& tensor) const {
    return tensor.const_data_ptr() == at(example) && tensor.is_contiguous() && is_plain(tensor) &&
           tensor.use_count() == 1 && tensor.storage().use_count() == 1;
  }
};

std::vector<size_t> ExampleSizes::expected() const {
  const std::lock_guard lock(mutex_);
  return expected_;
}

void ExampleSizes::expect(std::vector<size_t> bytes) {
  const std::lock_guard lock(mutex_);
  std::erase_if(bytes, [&](size_t size) {
    return std::find(refused_.begin(), refused_.end(), size) != refused_.end();
  });
  expected_ = std::move(bytes);
}

void ExampleSizes::refuse(size_t bytes) {
  const std::lock_guard lock(mutex_);
  refused_.push_back(bytes);
  std::erase(expected_, bytes);
}

// Without a limit on its batches a loader would keep those that a program once had at the same
// time. It has as many at once as its workers make, those ahead, and the loop's last two.
LoaderMemory::LoaderMemory(int workers, int64_t ahead, bool in_pinned)
    : batches(std::make_shared<BatchMemory>(workers + (ahead == 0 ? 2 * workers : ahead) + 2)),
      pinned(in_pinned) {}

BatchPlaces::BatchPlaces(LoaderMemory& loader, int64_t examples)
    : loader_(loader),
      use_(*loader.batches),
      examples_(examples),
      expected_(loader.sizes.expected()),
      before_(std::exchange(t_batch_places, this)) {}

BatchPlaces::~BatchPlaces() {
  t_batch_places = before_;
  if (found_ != expected_)
    loader_.sizes.expect(std::move(found_));
}

void BatchPlaces::begin_example(int64_t number) {
  if (t_batch_places != nullptr)
    t_batch_places->example_ = number;
}

void BatchPlaces::end_examples() {
  begin_example(-1);
}

// As many strips of a size as the last batch had tensors of it.
BatchPlaces::Strip* BatchPlaces::strip_with_room(size_t bytes) {
  int64_t strips = 0;
  for (const auto& strip : strips_) {
    if (strip->bytes != bytes)
      continue;
    ++strips;
    if (!strip->is_taken(example_))
      return strip.get();
  }
  if (strips == std::count(expected_.begin(), expected_.end(), bytes))
    return nullptr;
  const auto count = static_cast<size_t>(examples_);
  strips_.push_back(std::make_unique<Strip>(
      Strip{.bytes = bytes,
            .memory = memory_of_strip(loader_, count * bytes),
            .taken = std::make_shared<std::vector<std::atomic<bool>>>(count)}));
  return strips_.back().get();
}

std::optional<c10::Storage> BatchPlaces::place(size_t bytes) {
  if (example_ < 0 || example_ >= examples_)
    return {};
  const Strip* const strip = strip_with_room(bytes);
  if (strip == nullptr)
    return {};
  auto lease = std::make_unique<PlaceLease>(strip->memory, strip->taken, example_);
  strip->taken->at(example_).store(true, std::memory_order_relaxed);
  return c10::Storage(c10::Storage::use_byte_size_t(),
                      bytes,
                      {strip->at(example_), lease.release(), &end_place_lease, c10::kCPU},
                      c10::GetCPUAllocator(),
                      /*resizable=*/true);
}

// Nothing, if a place is in use by somebody else. One that nobody uses is free for its example.
std::optional<at::Tensor> BatchPlaces::filled(const Strip& strip,
                                              const std::vector<at::Tensor>& tensors) const {
  std::vector<int64_t> elsewhere;
  for (int64_t i = 0; i < examples_; ++i) {
    if (strip.has(i, tensors[i]))
      continue;
    if (strip.is_taken(i) || !is_plain(tensors[i]))
      return {};
    elsewhere.push_back(i);
  }
  auto sizes = tensors.front().sizes().vec();
  sizes.insert(sizes.begin(), examples_);
  auto batch = tensor_on(strip.memory, tensors.front().scalar_type(), sizes);
  for (const int64_t i : elsewhere)
    batch.select(0, i).copy_(tensors[i]);
  return batch;
}

std::optional<at::Tensor> BatchPlaces::join(std::vector<at::Tensor>& tensors) {
  const at::Tensor& first = tensors.front();
  if (example_ >= 0 || !is_plain(first) || first.nbytes() < kLeastExampleBytes)
    return {};
  const size_t bytes = first.nbytes();
  if (found_.size() < kMostSizes)
    found_.push_back(bytes);
  if (std::ssize(tensors) != examples_)
    return {};
  for (const auto& strip : strips_) {
    const auto lies_there = [&, i = int64_t{0}](const at::Tensor& tensor) mutable {
      return tensor.const_data_ptr() == strip->at(i++);
    };
    if (strip->joined || strip->bytes != bytes ||
        !std::any_of(tensors.begin(), tensors.end(), lies_there))
      continue;
    auto batch = filled(*strip, tensors);
    if (!batch) {
      loader_.sizes.refuse(bytes);
      return {};
    }
    strip->joined = true;
    tensors.clear();
    return batch;
  }
  return {};
}

std::optional<at::Tensor> BatchPlaces::joined(std::vector<at::Tensor>& tensors) {
  return t_batch_places == nullptr ? std::nullopt : t_batch_places->join(tensors);
}

at::Tensor empty_in_batch(at::IntArrayRef sizes, at::ScalarType type) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  if (t_batch_places != nullptr && bytes >= kLeastExampleBytes)
    if (auto place = t_batch_places->place(bytes))
      return tensor_on(std::move(*place), type, sizes);
  return at::empty(sizes, type);
}

}  // namespace muster
