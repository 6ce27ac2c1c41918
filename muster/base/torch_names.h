// LibTorch's objects, types of numbers, devices and layouts without their namespace. Not for public
// headers, nor for those that these include: programs may have types of these names.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <set>

namespace c10 {
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
using c10::kBFloat16;
using c10::kBool;
using c10::kByte;
using c10::kChar;
using c10::kComplexDouble;
using c10::kComplexFloat;
using c10::kCPU;
using c10::kCUDA;
using c10::kDouble;
using c10::kFloat;
using c10::kHalf;
using c10::kInt;
using c10::kLong;
using c10::kShort;
using c10::kStrided;
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
