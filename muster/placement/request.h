// What the user asks of placement. Pure data: the command line, muster::run and the tasks runner all fill it
// in.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/placement/plan.h"

namespace muster {

// What to do with more ranks than GPUs on a host.
enum class Surplus {
  error,
  cpu,    // the rest on CPU slots
  drop,   // fewer ranks
  share,  // rank % count; each rank then sees its own GPU alone, unless `visibility` says otherwise
};

// "error", "cpu", "drop", "share", as --surplus spells them.
const char* to_string(Surplus surplus);

// Throws: invalid_argument naming the four values.
Surplus parse_surplus(std::string_view text);

struct Request {
  std::optional<int> nproc_per_node = {};  // nothing: one rank per device
  bool cpu_only = false;      // nproc-per-node "cpu": ranks on CPU slots, whatever GPUs there are
  bool gpu_only = false;      // nproc-per-node "gpu": an error without GPUs
  std::string gpus = {};      // "all" or empty; "0,2-5"; "GPU-<uuid prefix>,3"
  std::string policy = {};    // a name of policy.h; empty: "list" with `map`, else "sequential"
  std::vector<int> map = {};  // policy "list": GPU index of each local rank, on every host
  Surplus surplus = Surplus::error;
  Visibility visibility = Visibility::job;
  // An inherited CUDA_VISIBLE_DEVICES, empty included: the outer mask, of every host. It belongs to this
  // machine, so leave it out with an inventory from a file.
  std::optional<std::string> visible_mask = {};
};

}  // namespace muster
