// What the tests of the fake GPUs share.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <string>

namespace muster {

inline const c10::Device kGpu(c10::kCUDA, 0);

inline const c10::impl::VirtualGuardImpl& gpus() {
  static const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return guard;
}

// What `body` throws, or "".
template <class Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace muster
