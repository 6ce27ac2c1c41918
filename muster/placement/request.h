// What the user asks of placement. Pure data; the command line, muster::run and the tasks runner
// fill it in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/mesh_shape.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/network_order.h"
#include "muster/placement/plan.h"
#include "muster/placement/selection/selection.h"

namespace muster {

// What to do if a host has more ranks than GPUs.
enum class Surplus {
  error,
  cpu,    // the rest on CPU slots
  drop,   // fewer ranks
  share,  // rank % count; a rank then sees only its own GPU, unless `visibility` differs
};

// "error", "cpu", "drop", "share": the values of --surplus.
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

// More ranks of one host than this are a slip of the hand.
inline constexpr int kMostRanksOfHost = 1'000'000;

struct HostRequest {  // one entry of --hosts
  std::string name{};
  std::optional<int> nproc{};  // nothing: Request::nproc_per_node
  // what the host's own environment hides; nothing: Request::masks
  std::optional<VisibilityMasks> masks{};
};

struct Request {
  std::optional<int> nproc_per_node{};  // nothing: one rank per device
  bool cpu_only = false;  // nproc-per-node "cpu": use CPU slots even if there are GPUs
  bool gpu_only = false;  // nproc-per-node "gpu": it is an error if there are no GPUs
  Selection gpus{};       // GPUs to use
  int gpus_per_rank =
      1;  // for processes that drive several; a rank's are next to each other in the policy's order
  // A policy's name (policy.h). Empty: "list" with `map`, `map_of` or `choose`, "memory" with
  // `rank_memory_bytes`, "mesh" with `mesh`, "fastest" with `scores` for nothing else, else
  // "sequential".
  std::string policy{};
  Ints map{};  // policy "list": GPU index of each local rank, on every host
  // `map` for one host, as `muster run --map-command` tells it: from the indices of the host's
  // selected GPUs, and the number of ranks that was asked for there. Called several times for a
  // host.
  std::function<Ints(const Host& host, const Ints& gpus, std::optional<int> num_ranks)> map_of{};
  // `map` as a function, called once per host with GPUs; returns one index per rank on that host.
  std::function<Ints(const Host& host, int num_ranks)> choose{};
  // Of the inventory, in this order. Empty: all, in the order of the network where `switches` tells
  // it.
  std::vector<HostRequest> hosts{};
  SwitchPaths switches{};  // the network above the hosts; empty: not known
  // Relative speed of a GPU, found by its UUID, "host:index", index ("3") or model, whichever is
  // listed first in this sequence. Higher is faster; only ratios matter. A MIG instance has a UUID
  // and a model ("NVIDIA A100-SXM4-40GB MIG 1g.5gb"); a CPU slot is "host:cpu" or "cpu".
  std::map<std::string, double> scores{};
  // Free memory that each local rank needs on its GPU; the last value repeats. No policy gives a
  // rank less.
  std::vector<uint64_t> rank_memory_bytes{};
  // The ranks as a grid; one size may be -1: the remaining ranks. It sets the number of ranks if
  // nothing else does.
  MeshAxes mesh{};
  int64_t global_batch = 0;  // samples per step over all ranks; 0: not given
  NumaBinding numa_binding = NumaBinding::none;
  Surplus surplus = Surplus::error;
  Visibility visibility = Visibility::job;
  // What the outer environment hides, on every host. The masks belong to this machine: leave them
  // out with an inventory from a file.
  VisibilityMasks masks{};
};

}  // namespace muster
