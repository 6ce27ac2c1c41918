// A stand-in for the library muster_cuda, so that what happens to devices is tested with no GPU: as
// many GPUs as FAKE_CUDA lists by UUID, or those of them that CUDA_VISIBLE_DEVICES shows. It says
// each device that is made current on standard error. Their memory is that of fake_gpu.cc, and
// their NCCL that of fake_nccl.cc. FAKE_CUDA_MEMORY is how many bytes each has; FAKE_CUDA_STACKS
// shows where memory is used that was not waited for.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/env.h"
#include "muster/base/strings.h"
#include "muster/comm/nccl/plugin.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/cuda/fake_graph.h"
#include "tests/cuda/fake_nccl.h"
#include "tests/cuda/fake_streams.h"

namespace {

std::vector<std::string> uuids() {
  const std::vector<std::string> all =
      muster::split(muster::get_env("FAKE_CUDA").value_or(""), ',');
  const char* mask = std::getenv("CUDA_VISIBLE_DEVICES");
  if (mask == nullptr)
    return all;
  std::vector<std::string> seen;
  for (const std::string& entry : muster::split(mask, ',')) {
    const auto index = muster::parse_int(entry);
    seen.push_back(index ? all.at(static_cast<size_t>(*index)) : entry);
  }
  return seen;
}

void set_device(int ordinal) {
  std::fprintf(stderr, "current: cuda:%d\n", ordinal);
  muster::testing::set_fake_gpu(ordinal);
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const muster::NcclGroup& group) {
  std::fprintf(stderr,
               "nccl: rank %d of %s%s%s, of the job's ranks %s\n",
               group.rank,
               group.name.c_str(),
               group.parent ? ", split" : "",
               group.options.high_priority_stream ? ", high priority" : "",
               muster::join(group.ranks_of_job, ",").c_str());
  return muster::testing::make_fake_nccl(store, group);
}

void stay_out_of_split(c10d::Backend& /*parent*/, int /*ordinal*/) {
  std::fprintf(stderr, "nccl: stays out of a split\n");
}

constexpr muster::CudaPlugin kFake{
    .device_count = muster::testing::num_fake_gpus,
    .set_device = set_device,
    .begin_thread = muster::testing::set_fake_gpu,
    .device_uuid = [](int ordinal) { return uuids().at(static_cast<size_t>(ordinal)); },
    .pci_address = [](int ordinal) { return "at " + uuids().at(static_cast<size_t>(ordinal)); },
    .nccl_version = [] { return std::string("0.0.0"); },
    .make_nccl = make_nccl,
    .stay_out_of_split = stay_out_of_split,
    .make_graph = []() -> std::unique_ptr<muster::GpuGraph> {
      return std::make_unique<muster::testing::FakeGraph>();
    },
    .new_stream =
        [](int ordinal) {
          const auto index = static_cast<c10::DeviceIndex>(ordinal);
          return muster::testing::new_stream({c10::kCUDA, index});
        }};

}  // namespace

int muster::testing::num_fake_gpus() {
  return static_cast<int>(uuids().size());
}

extern "C" __attribute__((visibility("default"))) const muster::CudaPlugin* muster_cuda_plugin() {
  return &kFake;
}

extern "C" __attribute__((visibility("default"))) const char* muster_plugin_version() {
  const char* const other = std::getenv("FAKE_CUDA_VERSION");
  return other != nullptr ? other : MUSTER_VERSION;
}
