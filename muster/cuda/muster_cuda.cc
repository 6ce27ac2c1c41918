// The library muster_cuda: everything of muster that needs LibTorch's CUDA part and NCCL. Loaded by
// comm/nccl.cc.
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "muster/comm/cuda_plugin.h"

namespace {

int device_count() {
  return c10::cuda::device_count();
}

void set_device(int ordinal) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(ordinal));
}

std::string device_uuid(int ordinal) {
  const cudaUUID_t uuid = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(ordinal))->uuid;
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string nccl_version() {
  return c10d::getNcclVersion();
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout, int ordinal) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  // Bound and connected now, so that a wrong device is an error here and not a hang in the first collective.
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(ordinal));
  backend->setBoundDeviceId(device);
  backend->eagerConnectSingleDevice(device);
  return backend;
}

constexpr muster::CudaPlugin kPlugin{.device_count = device_count,
                                     .set_device = set_device,
                                     .device_uuid = device_uuid,
                                     .nccl_version = nccl_version,
                                     .make_nccl = make_nccl};

}  // namespace

extern "C" __attribute__((visibility("default"))) const muster::CudaPlugin* muster_cuda_plugin() {
  return &kPlugin;
}
