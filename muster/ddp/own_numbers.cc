// LibTorch's generator cannot be another one in one thread. But an operator that draws takes one as
// an argument, which is mostly left out. While the scope's key is set, the dispatcher calls every
// operator through a function of ours, which fills that argument in.
#include "muster/ddp/own_numbers.h"

#include <ranges>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

// LibTorch itself gives it to no operator and no tensor.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

at::Generator& numbers_of_thread() {
  thread_local at::Generator numbers = at::detail::createCPUGenerator();
  return numbers;
}

// An operator of another device takes no numbers of the CPU.
bool is_on_cpu(std::ranges::forward_range auto arguments) {
  const auto is_elsewhere = [](const IValue& value) {
    return value.isTensor() && value.toTensor().defined() && !value.toTensor().is_cpu();
  };
  return any_of(arguments, &IValue::isTensor) && none_of(arguments, is_elsewhere);
}

// What an operator calls comes here again.
void draw_own(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema().arguments();
  const auto arguments = std::ranges::subrange(stack->end() - std::ssize(schema), stack->end());
  for (const size_t i : indices_of(schema)) {
    if (schema[i].name() == "generator" && arguments[i].isNone() && is_on_cpu(arguments))
      arguments[i] = numbers_of_thread();
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// Registered when this library is loaded: later the table of operators would change under threads
// that call some. Never destroyed, for the same reason.
const torch::Library& draws_own = []() -> torch::Library& {
  auto& library = *new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  return library.fallback(torch::CppFunction::makeFromBoxedFunction<&draw_own>());
}();

}  // namespace

OwnNumbers::OwnNumbers() : to_ours_(kKey) {}

}  // namespace muster
