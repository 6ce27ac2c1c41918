// What the user asks of placement. Pure data: the command line, muster::run and the tasks runner all fill it
// in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/placement/plan.h"

namespace muster {

// What to do with more ranks than GPUs.
enum class Surplus { error, cpu, drop, share };

struct Request {
  std::optional<int> nproc_per_node;  // nothing: one rank per device
  bool cpu_only = false;              // nproc-per-node "cpu": ranks on CPU slots, whatever GPUs there are
  bool gpu_only = false;              // nproc-per-node "gpu": an error without GPUs
  std::string gpus;                   // "all" or empty; "0,2-5"; "GPU-<uuid prefix>,3"
  std::string policy = "sequential";  // or "list", with `map`
  std::vector<int> map;               // GPU index of each local rank
  Surplus surplus = Surplus::error;
  Visibility visibility = Visibility::job;
  std::optional<std::string> visible_mask;  // an inherited CUDA_VISIBLE_DEVICES: the outer mask
};

}  // namespace muster
