// muster_cuda is loaded with dlopen() when a GPU is first asked for. LibTorch's own CUDA part is
// loaded before it, from beside the CPU part in use, so that the two belong together.
#include "muster/comm/nccl/nccl.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/env.h"
#include "muster/base/functions.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/comm/call/library_folder.h"
#include "muster/comm/call/plugin_table.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/nccl/gpu_graph.h"
#include "muster/comm/nccl/gpu_turn.h"
#include "muster/comm/nccl/plugin.h"
#include "muster/comm/torch_compat.h"

namespace muster {

namespace {

std::atomic<int> graphs_captured = 0;

class HeldGraph;

// The graphs of this process.
class HeldGraphs {
 public:
  void add(HeldGraph* graph);
  void remove(HeldGraph* graph);
  bool are_none();
  void drop();

 private:
  std::mutex mutex_;
  std::set<HeldGraph*> graphs_;
};

HeldGraphs& held_graphs() {
  static auto& all = *new HeldGraphs;  // never destroyed: a graph may live as long
  return all;
}

// A graph of the plugin's, which another thread may drop. One that is being captured goes in the
// end.
class HeldGraph final : public GpuGraph {
 public:
  explicit HeldGraph(std::unique_ptr<GpuGraph> graph) : graph_(std::move(graph)) {
    held_graphs().add(this);
  }
  ~HeldGraph() override { held_graphs().remove(this); }

  void begin() override {
    device_ = c10::impl::VirtualGuardImpl(kCUDA).getDevice();
    graph_->begin();
  }
  void end() override {
    graph_->end();
    const Lock lock(mutex_);
    is_whole_ = true;
    if (is_dropped_)
      graph_.reset();
  }
  void replay() override {
    const Lock lock(mutex_);
    if (is_dropped_)
      throw failed_precondition(
          "CUDA graph: expected communicators that live, got the end of one of this process; "
          "capture anew, as by a new GraphedStep, in a new group if its own has ended");
    graph_->replay();
  }
  void drop() {
    const Lock lock(mutex_);
    is_dropped_ = true;
    if (!is_whole_)
      return;
    const c10::DeviceGuard there(device_);
    graph_.reset();
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<GpuGraph> graph_;
  Device device_ = kCUDA;
  bool is_whole_ = false, is_dropped_ = false;
};

void HeldGraphs::add(HeldGraph* graph) {
  const Lock lock(mutex_);
  graphs_.insert(graph);
}

void HeldGraphs::remove(HeldGraph* graph) {
  const Lock lock(mutex_);
  graphs_.erase(graph);
}

bool HeldGraphs::are_none() {
  const Lock lock(mutex_);
  return graphs_.empty();
}

void HeldGraphs::drop() {
  const Lock lock(mutex_);
  for (HeldGraph* const graph : graphs_)
    graph->drop();
}

// The plugin lies beside libmuster itself, wherever that was installed; MUSTER_CUDA_LIBRARY names
// another.
std::string plugin_path() {
  if (const auto path = get_env("MUSTER_CUDA_LIBRARY"))
    return *path;
  return folder_of_library_with(&use_cuda_device) + "libmuster_cuda.so";
}

// The plugin needs no path of its own to the CUDA part of the LibTorch in use. Where the part
// cannot be loaded, the plugin's loading tells why.
void load_cuda_part_of_libtorch() {
  const auto folder = folder_of_library_with(&at::CUDAHooksRegistry);
  ::dlopen(cat(folder, "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
}

const CudaPlugin& load_plugin() {
  const auto path = plugin_path();
  // Without the plugin, the CUDA part alone would be of no use.
  if (!get_env("MUSTER_CUDA_LIBRARY") && ::access(path.c_str(), R_OK) == 0)
    load_cuda_part_of_libtorch();
  // RTLD_GLOBAL because LibTorch's CUDA part registers itself with the CPU part on loading. Loading
  // again is a no-op.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw unavailable(
        "cuda: expected the library muster_cuda, got: ",
        ::dlerror(),
        "; build muster with a LibTorch that has CUDA (scripts/setup.sh test installs it)");
  }
  return plugin_table<CudaPlugin>(library, path, "cuda", kCudaPluginSymbol);
}

// Whether there is a driver, and it is allowed to show a GPU.
bool may_have_gpus() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr && *visible == '\0')
    return false;
  return get_env("MUSTER_CUDA_LIBRARY") || ::dlopen("libcuda.so.1", RTLD_LAZY) != nullptr;
}

// LibTorch looks for its CUDA part once, when it is first asked for GPUs (by torch::manual_seed,
// for example), and goes without for good where it finds none. If that happens before a rank has
// its device, it finds load_hooks(), which loads the part. The part's own entry takes the place of
// this one, a plain function, which may be replaced while it runs.
constexpr auto kCudaHooks = "CUDAHooks";

std::unique_ptr<at::CUDAHooksInterface> load_hooks(at::CUDAHooksArgs args) {
  static std::atomic<bool> asked = false;
  if (asked.exchange(true) || !may_have_gpus())
    return nullptr;
  try {
    load_plugin();
  } catch (const Error&) {
    return nullptr;  // told to who asks for a device
  }
  return at::CUDAHooksRegistry()->Create(kCudaHooks, args);
}

const bool hooks_are_registered = [] {
  if (at::CUDAHooksRegistry()->Has(kCudaHooks))
    return false;  // the program is linked to LibTorch's CUDA part
  at::CUDAHooksRegistry()->Register(kCudaHooks, load_hooks, c10::REGISTRY_FALLBACK);
  return true;
}();

}  // namespace

std::string use_cuda_device(Device device) {
  const CudaPlugin& plugin = load_plugin();
  const int count = plugin.device_count();
  if (device.index() < 0 || device.index() >= count) {
    throw unavailable("cuda: expected a visible GPU, got ",
                      device.str(),
                      " of ",
                      count,
                      " (CUDA_VISIBLE_DEVICES=",
                      get_env("CUDA_VISIBLE_DEVICES").value_or("unset"),
                      "); see `muster devices`, or run on CPU with --nproc-per-node cpu");
  }
  plugin.set_device(device.index());
  return plugin.device_uuid(device.index());
}

std::string pci_address(Device device) {
  return load_plugin().pci_address(device.index());
}

void begin_gpu_thread(Device device) noexcept {
  try {
    if (!device.is_cuda())
      return;
    load_plugin().begin_thread(device.index());
    end_turns_at_exit();
  } catch (const std::exception& error) {
    log_debug("cuda: ", error.what());
  }
}

std::string nccl_version() {
  return load_plugin().nccl_version();
}

BackendPtr make_nccl(const StorePtr& store, const NcclGroup& group) {
  return load_plugin().make_nccl(store, group);
}

void stay_out_of_split(c10d::Backend& parent, Device device) {
  load_plugin().stay_out_of_split(parent, device.index());
}

std::unique_ptr<GpuGraph> make_gpu_graph() {
  return std::make_unique<HeldGraph>(load_plugin().make_graph());
}

// The abort comes first, and beside the rest: a thread may be in the middle of a launch that only
// the abort lets go on.
void end_communicator(const Callback& end) {
  if (held_graphs().are_none())
    return end();
  std::exception_ptr failure;
  const auto catching = [&] {
    try {
      end();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  std::jthread ending;
  {
    const BlockedSignals blocked;  // in the thread, for good
    ending = std::jthread(catching);
  }
  held_graphs().drop();
  ending.join();
  if (failure)
    std::rethrow_exception(failure);
}

c10::Stream new_gpu_stream(Device device) {
  return load_plugin().new_stream(device.index());
}

bool is_a_graph_captured() {
  return graphs_captured > 0;
}

bool is_captured_now(Device device) {
  return is_capturing(current_stream_of(device),
                      /*unknown=*/is_a_graph_captured());
}

CapturesGraph::CapturesGraph() {
  ++graphs_captured;
}

CapturesGraph::~CapturesGraph() {
  --graphs_captured;
}

}  // namespace muster
