// libmuster and the library muster_cuda agree on a table of functions behind one C symbol.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/clock.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/nccl/gpu_graph.h"
#include "muster/comm/nccl_options.h"

namespace muster {

// The settings of a group over NCCL.
struct NcclGroup {
  int rank = 0;
  int size = 1;
  int ordinal = 0;  // of this rank's device
  // After which LibTorch's watchdog takes a collective for failed, whatever limit the call has.
  milliseconds watchdog_timeout{0};
  // Until all ranks have connected, with options.nonblocking.
  milliseconds connect_timeout{0};
  std::string name{};                    // in LibTorch's and NCCL's logs: "world", "ranks 0,2"
  std::vector<uint64_t> ranks_of_job{};  // its ranks, as the job numbers them
  NcclOptions options{};
  // The group's ranks are some of this one's: NCCL splits its communicator, to which all of its
  // ranks come, the others by stay_out_of_split(). Null: a communicator of its own.
  BackendPtr parent{};
  // Called with the backend before it connects, so that another thread can abort it then.
  std::function<void(const BackendPtr&)> made{};
};

struct CudaPlugin {
  int (*device_count)();
  void (*set_device)(int ordinal);
  void (*begin_thread)(int ordinal);        // as begin_gpu_thread()
  std::string (*device_uuid)(int ordinal);  // "GPU-8f3c…", as the driver's tools print it
  std::string (*pci_address)(int ordinal);  // as muster::pci_address()
  std::string (*nccl_version)();            // "2.27.3"
  BackendPtr (*make_nccl)(const StorePtr& store, const NcclGroup& group);
  void (*stay_out_of_split)(c10d::Backend& parent, int ordinal);
  std::unique_ptr<GpuGraph> (*make_graph)();
  c10::Stream (*new_stream)(int ordinal);
};

// muster has the time limits of NCCL's calls, and knows who is missing; LibTorch's watchdog would
// end the process where somebody waits for an error. LibTorch reads the variable when a group is
// made. "1" is what launchers set by default; a user's other choice stays.
inline void quiet_nccl_watchdog() {
  constexpr auto kVariable = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  const char* const told = std::getenv(kVariable);
  if (told == nullptr || std::string_view(told) == "1")
    ::setenv(kVariable, "0", /*overwrite=*/1);
}

// The symbol that muster_cuda exports.
inline constexpr auto kCudaPluginSymbol = "muster_cuda_plugin";

}  // namespace muster
