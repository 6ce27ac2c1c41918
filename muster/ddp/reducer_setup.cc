// The Reducer's buckets are cut as Python's are: one for the first backward, which shows the order
// of the gradients, then by size in that order.
#include "muster/ddp/reducer_setup.h"

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/hook_adapter.h"
#include "muster/ddp/recorded_group.h"
#include "muster/optim/parts.h"

namespace muster {

namespace {

constexpr double kMiB = 1024 * 1024;
constexpr int64_t kBytesOfFlag = sizeof(int32_t);  // in the map of unused parameters

constexpr const char* kNoBackendMemory = "DDP_DISABLE_COMM_MEM";

// Ranks may be threads of one process: the last one that is done puts LibTorch's default back. (To
// another value and not away: that moves nothing under a thread that reads the environment.)
class BackendMemoryUsers {
 public:
  static BackendMemoryUsers& instance() {
    static BackendMemoryUsers users;
    return users;
  }
  void enter() {
    const Lock lock(mutex_);
    if (count_++ == 0 && !is_users_own_)
      ::setenv(kNoBackendMemory, "0", 1);
  }
  void leave() {
    const Lock lock(mutex_);
    if (--count_ == 0 && !is_users_own_)
      ::setenv(kNoBackendMemory, "1", 1);
  }

 private:
  std::mutex mutex_;
  int count_ = 0;
  const bool is_users_own_ = std::getenv(kNoBackendMemory) != nullptr;
};

// New buckets would each have to learn a static graph anew.
void check_bucket_cap(const DdpOptions& options, int rank) {
  if (!options.bucket_cap_mb.is_size()) {
    throw invalid_argument("DistributedDataParallel: expected a size in MiB as bucket_cap_mb, got ",
                           *options.bucket_cap_mb.mib(),
                           " (rank ",
                           rank,
                           "); give 25, or BucketCap::automatic()");
  }
  if (!options.bucket_cap_mb.is_automatic() || !options.static_graph)
    return;
  throw invalid_argument(
      "DistributedDataParallel: expected bucket_cap_mb as a number with static_graph, got "
      "BucketCap::automatic(), whose new buckets would each have to learn the graph anew; "
      "give a number");
}

// The sizes of the buckets for the first backward: one for all, which the Reducer cuts up in the
// order in which gradients really came. It does not do so where it looks for unused parameters.
Indices first_limits(size_t first_cap, size_t cap, bool finds_unused) {
  if (!finds_unused)
    return {std::numeric_limits<int64_t>::max()};
  if (first_cap == cap)
    return {cap};
  return {first_cap, cap};
}

// Refuses a parameter of which another part of muster divides the gradient: both would take it. Of
// FullySharded's such a parameter has no memory besides, so that a frozen one is refused too.
void check_gradient_is_whole(const NamedTensor& parameter, const ProcessGroup& group) {
  const Tensor& tensor = parameter.tensor;
  const bool is_frozen_with_memory = !tensor.requires_grad() && tensor.storage().nbytes() > 0;
  if (!optim::has_divided_gradient(tensor) || is_frozen_with_memory)
    return;
  throw invalid_argument(
      "DistributedDataParallel: expected parameters whose gradients nothing else "
      "averages, got '",
      parameter.name,
      "', which FullySharded, or a ShardedOptimizer with .gradients, has divided (rank ",
      group.job_rank(),
      "); call the model without DistributedDataParallel there, or leave .gradients of "
      "the ShardedOptimizer out");
}

}  // namespace

// Shared memory is the only backend that has such memory.
BucketsInBackendMemory::BucketsInBackendMemory(const ProcessGroup& group)
    : active_(group.backend().starts_with("shm")) {
  if (active_)
    BackendMemoryUsers::instance().enter();
}

BucketsInBackendMemory::~BucketsInBackendMemory() {
  if (active_)
    BackendMemoryUsers::instance().leave();
}

// device_ids are Python's: a rank may give its own device there, and no other. On the CPU
// `ctx.device().index()` is -1, so that the same line is right on every machine.
void check_placement(const ModelSource& model,
                     const ProcessGroup& group,
                     const DdpOptions& options) {
  check_bucket_cap(options, group.job_rank());
  const Device device = group.device();
  const bool is_own = options.device_ids.size() == 1 && options.device_ids[0] == device.index();
  if (!options.device_ids.empty() && !is_own) {
    Ints ids(options.device_ids.begin(), options.device_ids.end());
    throw invalid_argument(
        "DistributedDataParallel: expected device_ids empty or this rank's device, got [",
        join(ids, ", "),
        "] on ",
        device.str(),
        " (rank ",
        group.job_rank(),
        "); leave device_ids empty, or give {ctx.device().index()}");
  }
  for (const auto& item : model.parameters()) {
    check_gradient_is_whole(item, group);
    if (item.tensor.device() == device)
      continue;
    throw invalid_argument("DistributedDataParallel: expected parameter '",
                           item.name,
                           "' on ",
                           device.str(),
                           ", got ",
                           item.tensor.device().str(),
                           " (rank ",
                           group.job_rank(),
                           "); call model->to(ctx.device()) first");
  }
}

// A hook counts what it sends itself; sparse gradients are not counted.
Traffic traffic_of_backward(const c10d::Reducer& reducer, bool has_hook, bool finds_unused) {
  Traffic traffic;
  int64_t parameters = 0;
  for (const c10d::GradBucket& bucket : reducer.get_grad_buckets(/*return_zero_tensors=*/false)) {
    parameters += std::ssize(bucket.getParameters());
    const Tensor& gradients = bucket.getBuffer();
    if (has_hook || !gradients.defined() || gradients.is_sparse())
      continue;
    ++traffic.calls;
    traffic.bytes += gradients.numel() * gradients.element_size();
  }
  if (!finds_unused)
    return traffic;
  ++traffic.calls;
  traffic.bytes += parameters * kBytesOfFlag;
  return traffic;
}

// All arguments are what Python's DistributedDataParallel passes. The Reducer owns the hook's
// adapter.
ReducerParts make_reducer(const TrainedParameters& parameters,
                          ProcessGroup& group,
                          const DdpOptions& options,
                          const BucketCap& bucket_cap,
                          bool gradient_as_bucket_view) {
  const auto cap = static_cast<int64_t>(bucket_cap.mib().value_or(25) * kMiB);
  const int64_t first_cap = bucket_cap.mib() ? cap : c10d::kDefaultFirstBucketBytes;
  const bool finds_unused = options.find_unused_parameters && !options.static_graph;
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      parameters.tensors, first_limits(first_cap, cap, finds_unused), parameters.sparse));
  std::ranges::reverse(buckets);  // backward reaches the last parameters first
  std::unordered_map<size_t, std::string> names;
  for (const size_t i : indices_of(parameters.names))
    names[i] = parameters.names[i];
  const BucketsInBackendMemory in_backend_memory(group);
  auto reducer = std::make_shared<c10d::Reducer>(parameters.tensors,
                                                 buckets,
                                                 recorded_group(group),
                                                 parameters.sparse,
                                                 cap,
                                                 options.find_unused_parameters,
                                                 gradient_as_bucket_view,
                                                 names,
                                                 first_cap,
                                                 /*skip_all_reduce_unused_params=*/false,
                                                 /*use_python_reducer=*/false,
                                                 /*bucket_bytes_cap_list=*/Int64s{});
  // Its timings of every hundredth step would wait for the GPU, also in a captured one.
  reducer->set_ddp_runtime_logging_sample_rate(std::numeric_limits<int>::max());
  if (options.static_graph)
    reducer->set_static_graph();
  HookAdapter* hook = nullptr;
  if (options.hook) {
    auto adapter = std::make_unique<HookAdapter>(options.hook, group, parameters);
    hook = adapter.get();
    reducer->register_comm_hook(std::move(adapter));
  }
  auto logger = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger);
  return {.reducer = std::move(reducer), .logger = std::move(logger), .hook = hook};
}

}  // namespace muster
