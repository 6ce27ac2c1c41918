// What stands before the first step: is the model where the rank computes, and PyTorch's Reducer made as
// Python's DistributedDataParallel makes it.
#pragma once

#include <memory>

#include "muster/comm/process_group.h"
#include "muster/ddp/model_source.h"
#include "muster/ddp/options.h"
#include "muster/ddp/trained_parameters.h"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace muster {

class HookAdapter;

// Throws: invalid_argument for parameters on another device than the rank's, and for wrong device_ids.
void check_placement(const ModelSource& model, const ProcessGroup& group, const DdpOptions& options);

struct ReducerParts {
  std::shared_ptr<c10d::Reducer> reducer;
  // The Reducer writes into it when the set of unused parameters changes, and when it fails. It keeps a weak
  // reference, and uses it unseen.
  std::shared_ptr<c10d::Logger> logger;
  HookAdapter* hook = nullptr;  // the Reducer's; null without a hook
};

// While it lives, the Reducer makes its buckets in the memory that all ranks of a host see, where the backend
// has some: reduced there, not copied. LibTorch asks an environment variable each time, which others of its
// groups would follow too; where the user has set it, it stays. Complex parameters are left out: LibTorch
// makes wrong buckets of them there.
class BucketsInBackendMemory {
 public:
  BucketsInBackendMemory(const TrainedParameters& parameters, const ProcessGroup& group);
  ~BucketsInBackendMemory();
  BucketsInBackendMemory(const BucketsInBackendMemory&) = delete;
  BucketsInBackendMemory& operator=(const BucketsInBackendMemory&) = delete;

 private:
  bool active_;
};

// What the Reducer gives to c10d in a backward: its dense buckets, unless a hook reduces them, and the map of
// unused parameters, where they are looked for.
Traffic traffic_of_backward(const c10d::Reducer& reducer, bool has_hook, bool finds_unused);

// With `bucket_cap` in the place of the options'.
ReducerParts make_reducer(const TrainedParameters& parameters, ProcessGroup& group, const DdpOptions& options,
                          const BucketCap& bucket_cap, bool gradient_as_bucket_view);

}  // namespace muster
