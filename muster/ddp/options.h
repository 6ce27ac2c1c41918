// How DistributedDataParallel behaves: PyTorch's names, and its defaults except where a comment says
// otherwise.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "muster/ddp/bucket_cap.h"
#include "muster/ddp/hooks.h"

namespace muster {

// A parameter of a plain list. Without a name it gets its number.
struct NamedTensor {
  NamedTensor(at::Tensor of) : tensor(std::move(of)) {}  // NOLINT(google-explicit-constructor)
  NamedTensor(std::string of_name, at::Tensor of) : name(std::move(of_name)), tensor(std::move(of)) {}
  std::string name;
  at::Tensor tensor;
};

// By its name in the model, or the tensor itself.
using IgnoredParameter = std::variant<std::string, at::Tensor>;

struct DdpOptions {
  // Empty, or exactly this rank's device; anything else is an error.
  std::vector<c10::DeviceIndex> device_ids = {};
  bool broadcast_buffers = true;  // rank 0's buffers to all, before the first forward after each that was
                                  // reduced; as in PyTorch
  bool init_sync = true;          // compare the models and broadcast rank 0's, at construction and where
                                  // parameters are frozen, unfrozen, registered or given another size later
  BucketCap bucket_cap_mb = {};   // MiB; default 25, the first bucket 1; or BucketCap::automatic()
  bool find_unused_parameters = false;
  // PyTorch's default is false, because zero_grad() throws on its views; ours do not, and one copy is saved.
  // Wrapped models that have a parameter in common copy all the same.
  bool gradient_as_bucket_view = true;
  bool static_graph = false;
  // Not in PyTorch: ranks that had not the same forwards and backwards are an error within the step. Only
  // forwards in training mode count. Set it to false where ranks run different numbers of forwards whose
  // results are dropped, and no backward is ever skipped, nor fails, on some of them only: the others are
  // then not told (over Gloo they wait until the deadline).
  bool check_steps = true;
  // What is done with gradients instead of a plain average (hooks.h). Sparse gradients are averaged as
  // without one. Ranks with different hooks are an error.
  Hook hook = {};
  // Parameters and buffers that each rank keeps to itself: not compared, not sent, not reduced.
  std::vector<IgnoredParameter> ignored_parameters = {};
  // Before every n-th forward that reduces, the ranks compare the bits of their parameters: the first that
  // differs is an error that names it and the ranks. 0: never. Costs a pass over the parameters, and 8 bytes
  // a parameter of traffic.
  int64_t verify_every = 0;
  bool verify_buffers = false;  // and of the buffers; running statistics differ between broadcasts
};

}  // namespace muster
