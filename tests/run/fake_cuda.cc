// A stand-in for the library muster_cuda, so that what happens to devices is tested with no GPU: as many GPUs
// as FAKE_CUDA lists by UUID, or those of them that CUDA_VISIBLE_DEVICES shows. It says each device that is
// made current on standard error.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/comm/cuda_plugin.h"

namespace {

std::vector<std::string> uuids() {
  const std::vector<std::string> all = muster::split(std::getenv("FAKE_CUDA"), ',');
  const char* mask = std::getenv("CUDA_VISIBLE_DEVICES");
  if (mask == nullptr) return all;
  std::vector<std::string> seen;
  for (const std::string& entry : muster::split(mask, ',')) {
    const auto index = muster::parse_int(entry);
    seen.push_back(index ? all.at(static_cast<size_t>(*index)) : entry);
  }
  return seen;
}

constexpr muster::CudaPlugin kFake{
    .device_count = [] { return static_cast<int>(uuids().size()); },
    .set_device = [](int ordinal) { std::fprintf(stderr, "current: cuda:%d\n", ordinal); },
    .device_uuid = [](int ordinal) { return uuids().at(static_cast<size_t>(ordinal)); },
    .nccl_version = [] { return std::string(); },
    .make_nccl = [](const c10::intrusive_ptr<c10d::Store>&, int, int, std::chrono::milliseconds,
                    int) { return c10::intrusive_ptr<c10d::Backend>(); }};

}  // namespace

extern "C" __attribute__((visibility("default"))) const muster::CudaPlugin* muster_cuda_plugin() {
  return &kFake;
}
