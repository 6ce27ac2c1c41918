#include "tests/cuda/fake_graph.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <utility>

#include "muster/base/error.h"
#include "tests/cuda/fake_block.h"
#include "tests/cuda/fake_memory.h"

namespace muster::testing {

namespace {

std::mutex& graphs_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::map<CaptureId, FakeGraph*>& graphs() {
  static auto* const graphs = new std::map<CaptureId, FakeGraph*>;  // never destroyed
  return *graphs;
}

// Kernels draw from the host's generator, since they run on the host.
at::Generator& random_numbers() {
  static auto* const generator = new at::Generator(at::detail::getDefaultCPUGenerator());
  return *generator;
}

}  // namespace

FakeGraph* graph_of(CaptureId capture) {
  if (capture == 0)
    return nullptr;
  const std::lock_guard lock(graphs_mutex());
  const auto found = graphs().find(capture);
  return found == graphs().end() ? nullptr : found->second;
}

FakeGraph::~FakeGraph() {
  if (id_ != 0) {
    try {
      end();
    } catch (const std::exception&) {
      // A capture that has failed was told of.
    }
  }
  for (const auto& [address, block] : own_)
    release_of_graph(address);
}

void FakeGraph::begin() {
  stream_ = current_stream(current_gpu());
  id_ = begin_capture(stream_);
  random_state_ = random_numbers().get_state();
  const std::lock_guard lock(graphs_mutex());
  graphs()[id_] = this;
}

void FakeGraph::end() {
  const CaptureId id = std::exchange(id_, 0);
  {
    const std::lock_guard lock(graphs_mutex());
    graphs().erase(id);
  }
  undo();
  end_capture(id, stream_);
  is_whole_ = true;
}

void FakeGraph::undo() {
  random_numbers().set_state(random_state_);
  for (const auto& [block, saved] : saved_)
    std::memcpy(block->pages(), saved.bytes.data(), saved.bytes.size());
  saved_.clear();
  for (const auto& [address, block] : own_)
    std::memset(block->pages(), 0xff, block->bytes());
}

void FakeGraph::replay() {
  if (!is_whole_)
    throw Error(ErrorCode::internal, "fake GPU: a graph was replayed that was not captured");
  const c10::Stream users = current_stream(stream_.device());
  block(record(users), stream_);
  const c10::Stream before = exchange_stream(stream_);
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  try {
    for (const auto& operation : operations_)
      operation();
  } catch (...) {
    exchange_stream(before);
    throw;
  }
  exchange_stream(before);
  block(record(stream_), users);
}

void FakeGraph::add(std::function<void()> again) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(std::move(again));
}

void FakeGraph::save(const std::shared_ptr<Block>& block) {
  const std::lock_guard lock(mutex_);
  if (own_.contains(block->address()) || saved_.contains(block.get()))
    return;
  saved_[block.get()] = {block, {block->pages(), block->pages() + block->bytes()}};
}

void FakeGraph::own(std::byte* address, const std::shared_ptr<Block>& block) {
  const std::lock_guard lock(mutex_);
  own_[address] = block;
}

at::Tensor by_address(const at::Tensor& tensor) {
  if (!tensor.defined())
    return tensor;
  if (!tensor.is_cuda()) {
    at::Tensor now = tensor.detach().clone();
    now.unsafeGetTensorImpl()->set_wrapped_number(
        tensor.unsafeGetTensorImpl()->is_wrapped_number());
    return now;
  }
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       tensor.storage().nbytes(),
                       c10::DataPtr(const_cast<void*>(tensor.storage().data()), tensor.device()),
                       /*allocator=*/nullptr,
                       /*resizable=*/false);
  at::Tensor found = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), tensor.dtype());
  found.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), tensor.storage_offset());
  found._set_conj(tensor.is_conj());
  found._set_neg(tensor.is_neg());
  return found;
}

std::vector<at::Tensor> by_address(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> found;
  for (const at::Tensor& tensor : tensors)
    found.push_back(by_address(tensor));
  return found;
}

c10::IValue by_address(const c10::IValue& value) {
  if (value.isTensor())
    return by_address(value.toTensor());
  if (!value.isList())
    return value;
  auto list = value.toList().copy();
  for (size_t i = 0; i < list.size(); ++i)
    list.set(i, by_address(list.get(i)));
  return list;
}

}  // namespace muster::testing
