// Before the first step: checks that the model is where the rank computes, and makes PyTorch's
// Reducer as Python's DistributedDataParallel does.
#pragma once

#include <memory>

#include "muster/base/no_copy.h"
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

// Throws: invalid_argument for parameters on another device than the rank's, and for wrong
// device_ids.
void check_placement(const ModelSource& model,
                     const ProcessGroup& group,
                     const DdpOptions& options);

struct ReducerParts {
  std::shared_ptr<c10d::Reducer> reducer;
  // The Reducer writes to it when the set of unused parameters changes, and when it fails. It keeps
  // only a weak reference, and uses it unchecked.
  std::shared_ptr<c10d::Logger> logger;
  HookAdapter* hook = nullptr;  // the Reducer's; null without a hook
};

// While it lives, the Reducer makes its buckets in memory that all ranks of a host see, if the
// backend has such memory: they are reduced there without copies. LibTorch reads an environment
// variable for this at each allocation, which other groups would follow too; a value set by the
// user is kept.
class BucketsInBackendMemory : NoCopy {
 public:
  explicit BucketsInBackendMemory(const ProcessGroup& group);
  ~BucketsInBackendMemory();

 private:
  bool active_;
};

// Counts what the Reducer passes to c10d in a backward: its dense buckets, unless a hook reduces
// them, and the map of unused parameters, if they are looked for.
Traffic traffic_of_backward(const c10d::Reducer& reducer, bool has_hook, bool finds_unused);

// Uses `bucket_cap` instead of that of the options.
ReducerParts make_reducer(const TrainedParameters& parameters,
                          ProcessGroup& group,
                          const DdpOptions& options,
                          const BucketCap& bucket_cap,
                          bool gradient_as_bucket_view);

}  // namespace muster
