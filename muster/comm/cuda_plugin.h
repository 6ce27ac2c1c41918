// What libmuster and the library muster_cuda agree on: a table of functions behind one C symbol.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace muster {

struct CudaPlugin {
  int (*device_count)();
  void (*set_device)(int ordinal);
  std::string (*device_uuid)(int ordinal);  // "GPU-8f3c…", as the driver's tools print it
  std::string (*nccl_version)();            // "2.27.3"
  c10::intrusive_ptr<c10d::Backend> (*make_nccl)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                 int size, std::chrono::milliseconds timeout, int ordinal);
};

// The symbol that muster_cuda exports.
inline constexpr const char* kCudaPluginSymbol = "muster_cuda_plugin";
using CudaPluginFunction = const CudaPlugin* (*)();

}  // namespace muster
