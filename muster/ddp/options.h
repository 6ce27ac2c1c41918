// Options of DistributedDataParallel: PyTorch's names, and its defaults unless a comment says
// otherwise.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/ddp/bucket_cap.h"
#include "muster/ddp/hooks.h"

namespace muster {

// A parameter in a plain list. Without a name it is named by its number.
struct NamedTensor {
  NamedTensor(Tensor of) : tensor(std::move(of)) {}  // NOLINT(google-explicit-constructor)
  NamedTensor(std::string of_name, Tensor of) : name(std::move(of_name)), tensor(std::move(of)) {}
  std::string name;
  Tensor tensor;
};
using ModelTensors = std::vector<NamedTensor>;

// A parameter's name in the model, or the tensor itself.
using IgnoredParameter = std::variant<std::string, Tensor>;

struct DdpOptions {
  // Empty, or exactly this rank's device; anything else is an error.
  std::vector<c10::DeviceIndex> device_ids = {};
  // Broadcast rank 0's buffers before the first forward after each reduced one, as PyTorch does.
  bool broadcast_buffers = true;
  // Compare the models and broadcast rank 0's: at construction, and when parameters are later
  // frozen, unfrozen, registered, resized, loaded (torch::load) or laid out otherwise.
  bool init_sync = true;
  BucketCap bucket_cap_mb = {};  // MiB; default 25, first bucket 1; or BucketCap::automatic()
  bool find_unused_parameters = false;
  // PyTorch's default is false, because zero_grad() throws on its views. muster's views allow it,
  // gradients that the program keeps stay as they were, and they save a copy. Wrapped models that
  // share a parameter copy anyway.
  bool gradient_as_bucket_view = true;
  bool static_graph = false;
  // Not in PyTorch: it is an error within the step if ranks run different forwards and backwards,
  // and on CPUs a warning if a sample of their weights differs (ddp.md, Verifying the replicas).
  // Only forwards in training mode count. Set it to false if ranks run different numbers of
  // forwards whose results are dropped, provided that no backward is skipped or fails on some ranks
  // only: the others would not be told (over Gloo they would wait until the timeout).
  bool check_steps = true;
  // Replaces the plain average of gradients (hooks.h). Sparse gradients are always averaged
  // plainly. All ranks must use the same hook.
  Hook hook = {};
  // Parameters and buffers that each rank keeps to itself: not compared, sent or reduced. A name
  // means whatever tensor the model has under it at the time.
  std::vector<IgnoredParameter> ignored_parameters = {};
  // Before every n-th reduced forward, the ranks compare the bits of their parameters. The first
  // difference is an error that names the parameter and the ranks. 0: never. Costs a pass over the
  // parameters, and 8 bytes of traffic per parameter.
  int64_t verify_every = 0;
  bool verify_buffers = false;  // also the buffers; running statistics differ between broadcasts
};

}  // namespace muster
