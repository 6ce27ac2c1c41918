// The library muster_cuda: everything of muster that needs LibTorch's CUDA part and NCCL.
// comm/nccl/nccl.cc loads it, and calls the functions of its table (comm/nccl/plugin.h). It keeps
// nothing of its own between the calls.
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "muster/base/hex.h"
#include "muster/base/strings.h"
#include "muster/comm/nccl/gpu_graph.h"
#include "muster/comm/nccl/plugin.h"

namespace {

// LibTorch numbers devices with a smaller type than the driver.
at::Device device_at(int ordinal) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(ordinal)};
}

int device_count() {
  return c10::cuda::device_count();
}

void set_device(int ordinal) {
  c10::cuda::set_device(device_at(ordinal).index());
}

// By default a question of any thread would break another one's capture of a CUDA graph.
void begin_thread(int ordinal) {
  set_device(ordinal);
  auto mode = cudaStreamCaptureModeThreadLocal;
  C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
}

std::string device_uuid(int ordinal) {
  const cudaUUID_t uuid = at::cuda::getDeviceProperties(device_at(ordinal).index())->uuid;
  return "GPU-" + muster::uuid_text(std::string_view(uuid.bytes, sizeof(uuid.bytes)));
}

std::string pci_address(int ordinal) {
  const auto* const gpu = at::cuda::getDeviceProperties(device_at(ordinal).index());
  return muster::cat(gpu->pciDomainID, ":", gpu->pciBusID, ":", gpu->pciDeviceID);
}

std::string nccl_version() {
  return c10d::getNcclVersion();
}

// A group with a parent is split from its communicator, of which all ranks must give one color.
c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> options_of(const muster::NcclGroup& group) {
  auto options = c10d::ProcessGroupNCCL::Options::create(group.options.high_priority_stream);
  options->timeout = group.watchdog_timeout;
  options->group_name = group.name;
  options->group_desc = group.name;
  options->global_ranks_in_group = group.ranks_of_job;
  if (group.options.nonblocking)
    options->config.blocking = 0;
  if (group.parent) {
    options->split_from = c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupNCCL>(group.parent);
    options->split_color = static_cast<int>(std::ranges::min(group.ranks_of_job));  // equal on all
  }
  return options;
}

// LibTorch reads these when it makes a group. A user's own values stay.
void set_environment(const muster::NcclGroup& group) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), /*overwrite=*/0);
  };
  muster::quiet_nccl_watchdog();
  // Messages take their turns with the group's other calls; docs/gpus.md says so.
  set("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false");
  if (!group.options.nonblocking)
    return;
  // LibTorch waits as long for every call of NCCL.
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(group.connect_timeout).count();
  set("TORCH_NCCL_NONBLOCKING_TIMEOUT", std::to_string(seconds));
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const muster::NcclGroup& group) {
  set_environment(group);
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, group.rank, group.size, options_of(group));
  if (group.made)
    group.made(backend);
  // Bound and connected now, so that a wrong device is an error here and not a hang in the first
  // collective.
  const at::Device device = device_at(group.ordinal);
  backend->setBoundDeviceId(device);
  const c10::DeviceGuard guard(device);  // getCommPtr() gives this device's communicator
  backend->eagerConnectSingleDevice(device);
  backend->getCommPtr();  // waits until it can be used
  return backend;
}

void stay_out_of_split(c10d::Backend& parent, int ordinal) {
  dynamic_cast<c10d::ProcessGroupNCCL&>(parent).performNocolorSplit(device_at(ordinal));
}

// The threads of loaders and of watchdogs use the GPU meanwhile, which only a capture of its own
// thread allows.
class Graph final : public muster::GpuGraph {
 public:
  void begin() override { graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal); }
  void end() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

std::unique_ptr<muster::GpuGraph> make_graph() {
  return std::make_unique<Graph>();
}

c10::Stream new_stream(int ordinal) {
  const c10::DeviceGuard guard(device_at(ordinal));
  cudaStream_t made = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return c10::cuda::getStreamFromExternal(made, device_at(ordinal).index()).unwrap();
}

constexpr muster::CudaPlugin kPlugin{.device_count = device_count,
                                     .set_device = set_device,
                                     .begin_thread = begin_thread,
                                     .device_uuid = device_uuid,
                                     .pci_address = pci_address,
                                     .nccl_version = nccl_version,
                                     .make_nccl = make_nccl,
                                     .stay_out_of_split = stay_out_of_split,
                                     .make_graph = make_graph,
                                     .new_stream = new_stream};

}  // namespace

extern "C" __attribute__((visibility("default"))) const muster::CudaPlugin* muster_cuda_plugin() {
  return &kPlugin;
}

extern "C" __attribute__((visibility("default"))) const char* muster_plugin_version() {
  return MUSTER_VERSION;
}
