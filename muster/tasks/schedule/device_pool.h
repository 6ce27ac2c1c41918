// The devices for tasks, and how much of each is taken: hosts, their GPUs in units and memory,
// their CPUs. A pure value: the schedule asks it where a task could run, takes that place and gives
// it back. It knows nothing of tasks but their needs, and nothing of processes.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/launch/lease.h"
#include "muster/placement/request.h"
#include "muster/placement/selection/scores.h"
#include "muster/placement/selection/selection.h"
#include "muster/placement/selection/usable_gpus.h"
#include "muster/tasks/task.h"

namespace muster {

struct PoolOptions {
  std::optional<Selection> gpus{};  // the only ones to use; nothing: all
  VisibilityMasks masks{};          // what the outer environment hides
  Scores scores{};                  // for `fastest:N` of `gpus` and of `on`
  int cpus = 0;                     // per host; 0: all that it has
  Ints slots{};                     // by host: most tasks at a time; 0 or absent: no limit
  // node: on a host with several NUMA nodes, bind a task to the CPUs of its GPUs' node, or of a
  // node with enough free CPUs. exclusive: bind it to as many CPUs as it counts, which no other
  // task of the run uses; a task with GPUs that gives no number counts its GPUs' share of the
  // host's CPUs. none: do not bind.
  NumaBinding numa_binding = NumaBinding::node;
};

struct PoolGpu {
  UsableGpu device{};  // in the host's Host::gpus
  GpuUuid uuid{};
  GpuIndex index{};
  std::string model{};
  std::optional<int> numa_node{};
  uint64_t memory_bytes = 0;   // in total
  uint64_t memory_others = 0;  // used by other programs
  int units_left = kWholeGpu;
  uint64_t memory_left = 0;  // not taken by running tasks or other programs
  int leased_units = 0;      // by other jobs
  std::string leased_by{};   // description of these jobs
};

using PoolGpus = std::vector<PoolGpu>;

struct PoolCpu {
  int cpu = 0;  // the kernel's number
  int numa_node = 0;
};

using PoolCpus = std::vector<PoolCpu>;

struct PoolHost {
  std::string name{};
  int cpus = 1;
  int cpus_left = 1;
  int slots_left = std::numeric_limits<int>::max();  // tasks that may still start
  bool set_aside = false;                            // place nothing more there
  PoolCpus free_cpus{};                              // not counted for any task; empty: unknown
  PoolGpus gpus{};

  // The index of the GPU with this UUID; nothing: unknown UUID.
  std::optional<int> find_gpu(const std::string& uuid) const;
};

using PoolHosts = std::vector<PoolHost>;

// The devices that a task has, on one host.
struct Allocation {
  int host = 0;
  Ints gpus{};                // indices into PoolHost::gpus, best linked ones adjacent
  int units = kWholeGpu;      // of each
  uint64_t memory_bytes = 0;  // of each
  int cpus = 0;               // counted
  Ints own_cpus{};            // the counted CPUs, if known
  Ints bound{};               // CPUs to bind it to; empty: not bound
  bool operator==(const Allocation&) const = default;
};

// The GPUs that a task may have: [host][index]; empty: all.
using AllowedGpus = std::vector<std::vector<bool>>;

// The part of a host that is reserved for tasks that wait: nobody who comes after them gets it.
struct HostReserved {
  std::vector<bool> gpus{};  // by the place in PoolHost::gpus
  int cpus = 0;
};

// The reservations by host; empty: there are none.
using Reserved = std::vector<HostReserved>;

inline bool is_reserved(const Reserved& reserved, int host, int gpu) {
  if (reserved.empty())
    return false;
  const std::vector<bool>& gpus = reserved[host].gpus;
  return !gpus.empty() && gpus[gpu];
}

inline int reserved_cpus(const Reserved& reserved, int host) {
  return reserved.empty() ? 0 : reserved[host].cpus;
}

// Throws: SelectionError when the selection names a host that the inventory does not have.
void check_selection(const Selection& selection, const Inventory& inventory);

// The units of each GPU, the GPUs, and the CPUs that the need counts for. Without a GPU it counts
// at least one CPU.
int units_of(const TaskNeed& need);
int gpus_of(const TaskNeed& need);
int cpus_of(const TaskNeed& need);

// "2 GPUs with 20.0 GiB free", "half a GPU", "4 CPUs".
std::string describe(const TaskNeed& need);

class DevicePool {
 public:
  // Throws: invalid_argument for `gpus` that no host has, and for `exclusive` on a host whose CPUs
  // are unknown or fewer than `cpus`.
  explicit DevicePool(Inventory inventory, const PoolOptions& options = {});

  const PoolHosts& hosts() const { return hosts_; }
  const Inventory& inventory() const { return inventory_; }
  int num_gpus() const { return num_gpus_; }

  // The GPUs allowed by `on`, a task's `--gpus` text. A text that names no hosts need match on only
  // one of them. Throws: SelectionError.
  AllowedGpus allowed(const std::string& on) const;

  // Whether an empty pool could meet the need, within --gpus and --cpus; if not, the schedule would
  // never end. check_needs.h turns it into a message for users, with the nearest match.
  bool could_meet(const TaskNeed& need, const AllowedGpus& allowed = {}) const;

  // Finds where the need can be met now: the best-fitting GPU (least memory, then least share
  // left), or the best linked GPUs of one host; among hosts, the fullest. Nothing: nowhere.
  std::optional<Allocation> find(const TaskNeed& need,
                                 const AllowedGpus& allowed = {},
                                 const Reserved& reserved = {}) const;

  // Whether the GPU meets the need, ignoring what others have of it.
  bool suits(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const;

  // Whether the GPU meets the need, and enough of it is free.
  bool has_room(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const;

  // Chooses the need's GPUs among `fitting`; nothing: there are too few.
  std::optional<Ints> choose_gpus(const TaskNeed& need, int host, const Ints& fitting) const;

  void take(const Allocation& allocation);
  void give_back(const Allocation& allocation);

  // Other jobs now hold `units` of the GPU; 0: nothing.
  void set_leased(int host, int gpu, int units, const std::string& by);

  // Other programs now use this much of the GPU's memory. Ignored for a GPU with a task, whose own
  // use is included.
  void set_memory_in_use(int host, int gpu, uint64_t bytes);

  // The host was lost: nothing is placed there until bring_back.
  void set_aside(int host) { hosts_[host].set_aside = true; }
  void bring_back(int host) { hosts_[host].set_aside = false; }

  // The CPUs of `host` that the need counts for.
  int cpus_for(const TaskNeed& need, const PoolHost& host) const;

  bool counts_cpus(const TaskNeed& need) const {
    return cpus_of(need) > 0 || numa_binding_ == NumaBinding::exclusive;
  }

  // Whether not even the smallest task could be placed.
  bool is_full() const { return cpus_left_ == 0 && units_left_ == 0; }

  // Why the GPU could not meet the need even if it were free: "model", "memory", "not among --gpus
  // 0,2"; empty: it could.
  std::string unfit(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const;

 private:
  struct Offer;

  void add_host(const Host& host, const PoolOptions& options);
  UsableGpus usable_in_pool(size_t host) const;
  std::optional<Offer> offer_of(int host,
                                const TaskNeed& need,
                                const AllowedGpus& allowed,
                                const Reserved& reserved) const;
  PoolGpu& gpu_at(int host, int gpu) { return hosts_[host].gpus[gpu]; }
  double slowest_link(int host, const Ints& gpus) const;
  Ints best_linked(int host, const Ints& fitting, int count) const;
  Ints choose_cpus(int cpus, int host, const Ints& gpus) const;
  Ints bind(const Allocation& where) const;
  void book(const Allocation& allocation, int sign);

  Inventory inventory_;
  NumaBinding numa_binding_;
  Scores scores_;
  PoolHosts hosts_;
  int num_gpus_ = 0;
  int64_t cpus_left_ = 0;   // of all hosts
  int64_t units_left_ = 0;  // of all GPUs
  // Finding rings is slow: these are results by host, count and the GPUs that are free.
  mutable std::map<Ints, Ints> linked_;
};

}  // namespace muster
