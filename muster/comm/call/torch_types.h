// LibTorch's types of numbers, devices and layouts without their namespace. Not for public headers.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

namespace muster {

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

}  // namespace muster
