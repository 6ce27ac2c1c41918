// LibTorch's types that sources name without their namespace. Not for public headers, nor for those
// that these include: programs may have types of these names.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

namespace c10 {
enum class ScalarType : int8_t;
struct Device;
struct IValue;
struct NoGradGuard;
struct TensorImpl;
}  // namespace c10

namespace torch::autograd {
struct AutogradContext;
}

namespace torch::nn {
class Module;
}

namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace muster {

using c10::Device;
using c10::IValue;
using c10::NoGradGuard;
using c10::ScalarType;
using c10::TensorImpl;
using torch::autograd::AutogradContext;
using torch::nn::Module;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using TensorImpls = std::set<const TensorImpl*>;
using ModulePtr = std::shared_ptr<Module>;

}  // namespace muster
