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

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lock.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

constexpr int64_t kLeastExampleBytes = 4 << 10;  // a smaller copy costs less than a place
constexpr size_t kMostSizes = 16;

thread_local BatchPlaces* t_batch_places = nullptr;

using TakenPlaces = std::shared_ptr<std::vector<std::atomic<bool>>>;

Tensor tensor_on(c10::Storage storage, ScalarType type, at::IntArrayRef sizes) {
  auto tensor = at::detail::make_tensor<TensorImpl>(
      std::move(storage), c10::DispatchKey::CPU, c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

// Only such tensors can be joined byte for byte.
bool is_plain(const Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == kStrided && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg();
}

Tensor memory_of_strip(bool pinned, int64_t bytes) {
  const auto options = at::TensorOptions(kByte).pinned_memory(pinned);
  return batch_tensor(options).resize_({bytes});
}

}  // namespace

struct BatchPlaces::Strip {
  int64_t bytes;  // of an example
  Tensor memory;
  TakenPlaces taken;
  bool joined = false;

  uint8_t* at(int64_t example) const {
    return memory.mutable_data_ptr<uint8_t>() + example * bytes;
  }
  bool is_taken(int64_t example) const {
    return taken->at(example).load(std::memory_order_acquire);
  }
  bool has_some_of(const Tensors& tensors) const {
    int64_t example = 0;
    return any_of(tensors,
                  [&](const Tensor& tensor) { return tensor.const_data_ptr() == at(example++); });
  }
  // Whether the example lies there, and nobody else has that memory.
  bool has(int64_t example, const Tensor& tensor) const {
    return tensor.const_data_ptr() == at(example) && tensor.is_contiguous() && is_plain(tensor) &&
           tensor.use_count() == 1 && tensor.storage().use_count() == 1;
  }
};

Int64s ExampleSizes::expected() const {
  const Lock lock(mutex_);
  return expected_;
}

void ExampleSizes::expect(Int64s bytes) {
  const Lock lock(mutex_);
  std::erase_if(bytes, [&](int64_t size) { return contains(refused_, size); });
  expected_ = std::move(bytes);
}

void ExampleSizes::refuse(int64_t bytes) {
  const Lock lock(mutex_);
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
BatchPlaces::Strip* BatchPlaces::strip_with_room(int64_t bytes) {
  int64_t strips = 0;
  for (const auto& strip : strips_) {
    if (strip->bytes != bytes)
      continue;
    ++strips;
    if (!strip->is_taken(example_))
      return strip.get();
  }
  if (strips == std::ranges::count(expected_, bytes))
    return nullptr;
  strips_.push_back(std::make_unique<Strip>(
      Strip{.bytes = bytes,
            .memory = memory_of_strip(loader_.pinned, examples_ * bytes),
            .taken = std::make_shared<std::vector<std::atomic<bool>>>(examples_)}));
  return strips_.back().get();
}

std::optional<c10::Storage> BatchPlaces::place(int64_t bytes) {
  if (example_ < 0 || example_ >= examples_)
    return {};
  const Strip* const strip = strip_with_room(bytes);
  if (strip == nullptr)
    return {};
  strip->taken->at(example_).store(true, std::memory_order_relaxed);
  auto memory = c10::InefficientStdFunctionContext::makeDataPtr(
      strip->at(example_),
      [batch = strip->memory, taken = strip->taken, example = example_](void*) {
        taken->at(example).store(false, std::memory_order_release);
      },
      kCPU);
  return c10::Storage(c10::Storage::use_byte_size_t(),
                      bytes,
                      std::move(memory),
                      c10::GetCPUAllocator(),
                      /*resizable=*/true);
}

// Nothing, if a place is in use by somebody else. One that nobody uses is free for its example.
std::optional<Tensor> BatchPlaces::filled(const Strip& strip, const Tensors& tensors) const {
  Int64s elsewhere;
  for (const int64_t i : indices_below(examples_)) {
    if (strip.has(i, tensors[i]))
      continue;
    if (strip.is_taken(i) || !is_plain(tensors[i]))
      return {};
    elsewhere.push_back(i);
  }
  auto sizes = tensors.front().sizes().vec();
  sizes.insert(sizes.begin(), examples_);
  auto batch = tensor_on(strip.memory.storage(), tensors.front().scalar_type(), sizes);
  for (const int64_t i : elsewhere)
    batch.select(0, i).copy_(tensors[i]);
  return batch;
}

std::optional<Tensor> BatchPlaces::join(Tensors& tensors) {
  const Tensor& first = tensors.front();
  if (example_ >= 0 || !is_plain(first))
    return {};
  const int64_t bytes = first.nbytes();
  if (bytes < kLeastExampleBytes)
    return {};
  if (found_.size() < kMostSizes)
    found_.push_back(bytes);
  if (std::ssize(tensors) != examples_)
    return {};
  for (const auto& strip : strips_) {
    if (strip->joined || strip->bytes != bytes || !strip->has_some_of(tensors))
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

std::optional<Tensor> BatchPlaces::joined(Tensors& tensors) {
  return t_batch_places == nullptr ? std::nullopt : t_batch_places->join(tensors);
}

Tensor empty_in_batch(at::IntArrayRef sizes, ScalarType type) {
  const int64_t bytes = c10::multiply_integers(sizes) * at::elementSize(type);
  if (t_batch_places != nullptr && bytes >= kLeastExampleBytes)
    if (auto place = t_batch_places->place(bytes))
      return tensor_on(std::move(*place), type, sizes);
  return at::empty(sizes, type);
}

}  // namespace muster
