// What the user asks of placement. Pure data: the command line, muster::run and the tasks runner all fill it
// in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/mesh_shape.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/plan.h"
#include "muster/placement/selection.h"

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

// How ranks are bound to CPUs near their GPU: torchrun's values of --numa-binding, and none.
enum class NumaBinding {
  none,
  node,          // all CPUs of the GPU's NUMA node
  socket,        // all CPUs of that node's socket
  exclusive,     // the node's cores divided among its ranks
  core_complex,  // the cores of one last-level cache of the node
};

// "none", "node", "socket", "exclusive", "core-complex".
const char* to_string(NumaBinding binding);

// Throws: invalid_argument naming the five values.
NumaBinding parse_numa_binding(std::string_view text);

struct HostRequest {  // one entry of --hosts
  std::string name = {};
  std::optional<int> nproc = {};              // nothing: as Request::nproc_per_node says
  std::optional<VisibilityMasks> masks = {};  // what its own environment hides; nothing: Request::masks
};

struct Request {
  std::optional<int> nproc_per_node = {};  // nothing: one rank per device
  bool cpu_only = false;  // nproc-per-node "cpu": ranks on CPU slots, whatever GPUs there are
  bool gpu_only = false;  // nproc-per-node "gpu": an error without GPUs
  Selection gpus = {};    // which to use
  // A name of policy.h; empty: "list" with `map` or `choose`, "memory" with `rank_memory_bytes`, "mesh" with
  // `mesh`, else "sequential".
  std::string policy = {};
  std::vector<int> map = {};  // policy "list": GPU index of each local rank, on every host
  // The same by a function, called once for each host with GPUs: as many indices as ranks are to be there.
  std::function<std::vector<int>(const Host& host, int num_ranks)> choose = {};
  std::vector<HostRequest> hosts = {};  // of the inventory, in this order; empty: all of them
  // Speed of a GPU by its UUID, "host:index", index ("3") or model, the first of these that is listed. Higher
  // is faster; only ratios count. A MIG instance has a UUID and a model ("NVIDIA A100-SXM4-40GB MIG 1g.5gb");
  // a CPU slot is "host:cpu" or "cpu".
  std::map<std::string, double> scores = {};
  // Free memory that each local rank needs on its GPU; the last repeats. No policy gives a rank less.
  std::vector<uint64_t> rank_memory_bytes = {};
  // The ranks as a grid; one size may be -1, for the rest. Without another number there are as many ranks.
  std::vector<MeshAxis> mesh = {};
  int64_t global_batch = 0;  // samples a step over all ranks; 0: not told
  NumaBinding numa_binding = NumaBinding::none;
  Surplus surplus = Surplus::error;
  Visibility visibility = Visibility::job;
  // What the outer environment hides, on every host. It belongs to this machine, so leave it out with an
  // inventory from a file.
  VisibilityMasks masks = {};
};

}  // namespace muster
