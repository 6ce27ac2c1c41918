// What devices there are for tasks and how much of each is taken: hosts, their GPUs in units and memory,
// their CPUs. A pure value: the schedule asks it where a task could be, takes that and gives it back. Knows
// nothing of tasks but their needs, and nothing of processes.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/launch/lease.h"
#include "muster/placement/request.h"
#include "muster/placement/selection.h"
#include "muster/placement/usable_gpus.h"
#include "muster/tasks/schedule/reserved.h"
#include "muster/tasks/task.h"

namespace muster {

struct PoolOptions {
  std::optional<Selection> gpus = {};  // the only ones to use; nothing: all
  VisibilityMasks masks = {};          // what the outer environment hides
  int cpus = 0;                        // of each host; 0: as many as it has
  std::vector<int> slots = {};         // by host: tasks at a time at most; 0, or none told: no limit
  // node: on a host of several NUMA nodes a task is kept on the CPUs of its GPUs' node, or of one that has as
  // many free as it counts; exclusive: on as many CPUs as it counts, which no other task of the run is kept
  // on, and one with GPUs that does not say how many counts its GPUs' part of the host's; none.
  NumaBinding numa_binding = NumaBinding::node;
};

struct PoolGpu {
  UsableGpu device = {};  // in the host's Host::gpus
  GpuUuid uuid = {};
  GpuIndex index = {};
  std::string model = {};
  std::optional<int> numa_node = {};
  uint64_t memory_bytes = 0;   // all that it has
  uint64_t memory_others = 0;  // that other programs use
  int units_left = kWholeGpu;
  uint64_t memory_left = 0;    // for tasks beside those that run and other programs
  int leased_units = 0;        // by other jobs
  std::string leased_by = {};  // in words
};

struct PoolCpu {
  int cpu = 0;  // the kernel's number
  int numa_node = 0;
};

struct PoolHost {
  std::string name = {};
  int cpus = 1;
  int cpus_left = 1;
  int slots_left = std::numeric_limits<int>::max();  // tasks that may start beside those that run
  bool set_aside = false;                            // nothing more is placed there
  std::vector<PoolCpu> free_cpus = {};  // that are not counted for a task; empty where they are not known
  std::vector<PoolGpu> gpus = {};

  // The place of the GPU with this UUID; nothing: it is none of these.
  std::optional<int> find_gpu(const std::string& uuid) const;
};

// Of one host, what a task has.
struct Allocation {
  int host = 0;
  std::vector<int> gpus = {};      // places in PoolHost::gpus, the best linked neighbours
  int units = kWholeGpu;           // of each
  uint64_t memory_bytes = 0;       // of each
  int cpus = 0;                    // counted
  std::vector<int> own_cpus = {};  // the ones that are counted, where they are known
  std::vector<int> bound = {};     // CPUs to keep it on; empty: not bound
  bool operator==(const Allocation&) const = default;
};

// Which GPUs a task may have: [host][place]; empty: all.
using AllowedGpus = std::vector<std::vector<bool>>;

// Units of each GPU, and CPUs, that the need counts for: a task without a GPU has one CPU at least.
int units_of(const TaskNeed& need);
int gpus_of(const TaskNeed& need);
int cpus_of(const TaskNeed& need);

// "2 GPUs with 20.0 GiB free", "half a GPU", "4 CPUs".
std::string describe(const TaskNeed& need);

class Pool {
 public:
  // Throws: invalid_argument for `gpus` that the hosts have not, and for `exclusive` on a host whose CPUs are
  // not known or are fewer than `cpus`.
  explicit Pool(Inventory inventory, const PoolOptions& options = {});

  const std::vector<PoolHost>& hosts() const { return hosts_; }
  const Inventory& inventory() const { return inventory_; }
  int num_gpus() const;

  // The GPUs that `on`, a task's `--gpus` text, allows. A text without hosts need fit one of them alone.
  // Throws: SelectionError.
  AllowedGpus allowed(const std::string& on) const;

  // Whether the need could be had if nobody else were there, with what --gpus and --cpus leave: without it the
  // schedule would never end. What users read of it, with the nearest there is, is check_needs.h's.
  bool could_meet(const TaskNeed& need, const AllowedGpus& allowed = {}) const;

  // Where the need can be had now: the GPU that fits best (least memory, then least share left), or the best
  // linked ones of one host; of several hosts the one that is fullest. Nothing when it cannot.
  std::optional<Allocation> find(const TaskNeed& need, const AllowedGpus& allowed = {},
                                 const Reserved& reserved = {}) const;

  // Whether the GPU would do for the need, though others have it now.
  bool suits(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const;

  // The same, and what the need takes of it is free.
  bool has_room(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const;

  // Those of `fitting` that the need gets; nothing: they are too few.
  std::optional<std::vector<int>> choose_gpus(const TaskNeed& need, int host, std::vector<int> fitting) const;

  void take(const Allocation& allocation);
  void give_back(const Allocation& allocation);

  // Other jobs have so much of the GPU now; 0: nothing any more.
  void set_leased(int host, int gpu, int units, const std::string& by);

  // Other programs use so much of the GPU's memory now. Not taken from a GPU that has a task: that is among
  // what uses it.
  void set_memory_in_use(int host, int gpu, uint64_t bytes);

  // The host was lost: nothing more is placed there, until it is back.
  void set_aside(int host) { hosts_[static_cast<size_t>(host)].set_aside = true; }
  void bring_back(int host) { hosts_[static_cast<size_t>(host)].set_aside = false; }

  // CPUs of that host that the need counts for.
  int cpus_for(const TaskNeed& need, const PoolHost& host) const;

  bool counts_cpus(const TaskNeed& need) const {
    return cpus_of(need) > 0 || numa_binding_ == NumaBinding::exclusive;
  }

  // True when not even the smallest task could be placed.
  bool is_full() const { return cpus_left_ == 0 && units_left_ == 0; }

  // Why the GPU will not do for the need, though nobody had it: "model", "memory", "not among --gpus 0,2";
  // empty: it would do.
  std::string unfit(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const;

 private:
  void add_host(const Host& host, const PoolOptions& options);
  PoolGpu& gpu_at(int host, int gpu) {
    return hosts_[static_cast<size_t>(host)].gpus[static_cast<size_t>(gpu)];
  }
  double slowest_link(int host, const std::vector<int>& gpus) const;
  std::vector<int> best_linked(int host, const std::vector<int>& fitting, int count) const;
  std::vector<int> choose_cpus(int cpus, int host, const std::vector<int>& gpus) const;
  std::vector<int> bind(int host, const Allocation& where) const;

  Inventory inventory_;
  NumaBinding numa_binding_;
  std::vector<PoolHost> hosts_;
  int64_t cpus_left_ = 0;   // of all hosts
  int64_t units_left_ = 0;  // of all GPUs
  // Rings take long to find: remembered by host, count and what is free.
  mutable std::map<std::vector<int>, std::vector<int>> linked_;
};

}  // namespace muster
