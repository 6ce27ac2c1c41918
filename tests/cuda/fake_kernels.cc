// The operations of tensors on fake GPUs: copies, views, and else LibTorch's own on the CPU, each
// as a kernel that is launched on the current stream. LibTorch copies a kernel's tensors to the CPU
// and its results back: these copies are the kernel's uses of its memory. Registered when the
// library is loaded, as LibTorch's CUDA part is.
#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "tests/cuda/fake_copies.h"
#include "tests/cuda/fake_graph.h"
#include "tests/cuda/fake_memory.h"
#include "tests/cuda/fake_streams.h"

namespace muster::testing {

namespace {

// One that runs in this thread, to the end of the scope. It is launched on a GPU when it first uses
// memory there.
class Kernel {
 public:
  explicit Kernel(const char* name) : name_(name), outer_(running) { running = this; }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel() { running = outer_; }

  static Kernel* of_thread() { return running; }

  at::Tensor values_of(const at::Tensor& tensor, Use use) {
    return tensor.is_cuda() ? testing::values_of(tensor, on(tensor.device()), use) : tensor;
  }
  // Of which it is part.
  FakeGraph* graph() const {
    for (const auto& [gpu, operation] : launched_) {
      if (FakeGraph* const found = graph_of(operation.capture))
        return found;
    }
    return nullptr;
  }
  void let_host_wait() const {
    for (const auto& [gpu, operation] : launched_)
      testing::let_host_wait(operation);
  }

 private:
  const Operation& on(c10::Device gpu) {
    const auto found = launched_.find(gpu.index());
    if (found != launched_.end())
      return found->second;
    return launched_.emplace(gpu.index(), launch(name_, current_stream(gpu))).first->second;
  }

  static thread_local Kernel* running;
  const char* const name_;
  Kernel* const outer_;
  std::map<c10::DeviceIndex, Operation> launched_;
};

thread_local Kernel* Kernel::running = nullptr;

at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  if (self.numel() == 0)
    return self;
  Kernel* const kernel = Kernel::of_thread();
  if (kernel == nullptr)
    return copy(self, from, non_blocking);
  const at::Tensor values = kernel->values_of(from, Use::read);
  kernel->values_of(self, Use::write).copy_(values);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes())
    to.resize_(from.sizes());
  return to.copy_(from);
}

// item()
at::Scalar local_scalar_dense(const at::Tensor& self) {
  Kernel kernel("item");
  const at::Scalar value = at::_local_scalar_dense(kernel.values_of(self, Use::read));
  kernel.let_host_wait();
  return value;
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty(at::IntArrayRef size,
                 std::optional<at::ScalarType> type,
                 std::optional<at::Layout>,
                 std::optional<at::Device> device,
                 std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard there(device);
  return at::detail::empty_generic(
      size, &gpu_allocator(), kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size,
                         at::IntArrayRef stride,
                         std::optional<at::ScalarType> type,
                         std::optional<at::Layout>,
                         std::optional<at::Device> device,
                         std::optional<bool>) {
  const c10::OptionalDeviceGuard there(device);
  return at::detail::empty_strided_generic(
      size, stride, &gpu_allocator(), kKeys, c10::dtype_or_default(type));
}

at::Tensor as_strided(const at::Tensor& self,
                      at::IntArrayRef size,
                      at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  record_on_stream(tensor.storage().data_ptr(), stream);
}

// Their results are as long as the values say, which the host must know.
constexpr std::array<std::string_view, 7> kLongAsValuesSay{"aten::nonzero",
                                                           "aten::masked_select",
                                                           "aten::_unique2",
                                                           "aten::unique_dim",
                                                           "aten::unique_consecutive",
                                                           "aten::bincount",
                                                           "aten::repeat_interleave"};

bool is_mask(const at::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined())
    return false;
  const at::ScalarType type = value.toTensor().scalar_type();
  return type == at::kBool || type == at::kByte;
}

// Whether tensors are picked by a mask, of which the host must know how many it picks.
bool has_masks(std::string_view name, const torch::jit::Stack& arguments) {
  if (name != "aten::index" || !arguments.back().isList())
    return false;
  const auto indices = arguments.back().toListRef();
  return std::any_of(indices.begin(), indices.end(), is_mask);
}

// Whether the host must know what a true GPU has computed before the call can return.
bool makes_host_wait(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments) {
  const auto& returns = schema.returns();
  const bool returns_values = std::any_of(returns.begin(), returns.end(), [](const auto& value) {
    const auto kind = value.type()->kind();
    return kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType;
  });
  return returns_values || std::ranges::count(kLongAsValuesSay, schema.name()) > 0 ||
         has_masks(schema.name(), arguments);
}

// A result of a kernel that runs again goes where the first one's is.
void put_result(Kernel& kernel, const at::Tensor& result, const at::Tensor& place) {
  if (!place.defined() || !place.is_cuda() || place.numel() == 0)
    return;
  if (result.storage().data() == place.storage().data())
    return;  // it is one of the arguments
  const at::Tensor values = kernel.values_of(result, Use::read);
  kernel.values_of(place, Use::write).copy_(values);
}

void put_results(Kernel& kernel, const c10::IValue& result, const c10::IValue& place) {
  if (place.isTensor())
    return put_result(kernel, result.toTensor(), place.toTensor());
  if (!place.isTensorList())
    return;
  const auto results = result.toTensorVector();
  const auto places = place.toTensorVector();
  for (size_t i = 0; i < places.size(); ++i)
    put_result(kernel, results[i], places[i]);
}

torch::jit::Stack all_by_address(const torch::jit::Stack& values) {
  torch::jit::Stack found;
  for (const c10::IValue& value : values)
    found.push_back(by_address(value));
  return found;
}

void run_again(const c10::OperatorHandle& op,
               const torch::jit::Stack& arguments,
               const torch::jit::Stack& places) {
  torch::jit::Stack stack = arguments;
  Kernel kernel(op.schema().name().c_str());
  at::native::cpu_fallback(op, &stack);
  for (size_t i = 0; i < places.size(); ++i)
    put_results(kernel, stack[i], places[i]);
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto count = std::ssize(schema.arguments());
  const torch::jit::Stack arguments(stack->end() - count, stack->end());
  const bool waits = makes_host_wait(schema, arguments);
  Kernel kernel(schema.name().c_str());
  at::native::cpu_fallback(op, stack);
  if (waits)
    kernel.let_host_wait();
  if (FakeGraph* const graph = kernel.graph()) {
    const auto results = std::ssize(schema.returns());
    graph->add([op,
                arguments = all_by_address(arguments),
                places = all_by_address({stack->end() - results, stack->end()})] {
      run_again(op, arguments, places);
    });
  }
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
  library.impl("_local_scalar_dense", local_scalar_dense);
}
TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

}  // namespace

}  // namespace muster::testing
