// hwloc's library is opened when it is needed and its functions are found by name. It looks for
// packages, cores and third-level caches alone: everything else would only cost time.
#include "muster/device/cpu_topology.h"

#include <hwloc.h>

#include <algorithm>
#include <optional>

#include "muster/base/loaded_library.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr auto kLibrary = "libhwloc.so.15";  // every hwloc 2

// The functions of hwloc's library. Its inline helpers that only follow pointers can be used as
// they are.
class Hwloc : public LoadedLibrary {
 public:
  Hwloc()
      : LoadedLibrary(kLibrary,
                      cat("CPU topology: expected ", kLibrary, " to read this machine"),
                      "install hwloc's library (Debian: libhwloc15)") {}

  decltype(&hwloc_topology_init) init = find("hwloc_topology_init");
  decltype(&hwloc_topology_set_all_types_filter) set_all_types_filter =
      find("hwloc_topology_set_all_types_filter");
  decltype(&hwloc_topology_set_type_filter) set_type_filter =
      find("hwloc_topology_set_type_filter");
  decltype(&hwloc_topology_load) load = find("hwloc_topology_load");
  decltype(&hwloc_topology_destroy) destroy = find("hwloc_topology_destroy");
  decltype(&hwloc_get_type_depth) type_depth = find("hwloc_get_type_depth");
  decltype(&hwloc_get_nbobjs_by_depth) count_by_depth = find("hwloc_get_nbobjs_by_depth");
  decltype(&hwloc_get_obj_by_depth) object_by_depth = find("hwloc_get_obj_by_depth");
  decltype(&hwloc_bitmap_next) bitmap_next = find("hwloc_bitmap_next");
  decltype(&hwloc_bitmap_alloc) bitmap_alloc = find("hwloc_bitmap_alloc");
  decltype(&hwloc_bitmap_free) bitmap_free = find("hwloc_bitmap_free");
  decltype(&hwloc_topology_is_thissystem) is_this_system = find("hwloc_topology_is_thissystem");
  decltype(&hwloc_get_cpubind) get_cpubind = find("hwloc_get_cpubind");
  decltype(&hwloc_topology_restrict) restrict_to = find("hwloc_topology_restrict");
};

// This machine as hwloc has read it, narrowed to the CPUs that this process may use.
class Topology : NoCopy {
 public:
  // All types are left out first and three are taken in again: hwloc keeps nothing else then.
  explicit Topology(const Hwloc& hwloc) : hwloc_(hwloc) {
    if (hwloc_.init(&topology_) != 0)
      hwloc_.fail("no memory");
    hwloc_.set_all_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_NONE);
    for (const auto type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_CORE, HWLOC_OBJ_L3CACHE})
      hwloc_.set_type_filter(topology_, type, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_.load(topology_) != 0) {
      hwloc_.destroy(topology_);
      hwloc_.fail("it cannot be read");
    }
    keep_usable();
  }
  ~Topology() { hwloc_.destroy(topology_); }

  // Where hwloc knows no cores, each hardware thread counts as one.
  CpuCores cores() const {
    CpuCores cores;
    int depth = hwloc_.type_depth(topology_, HWLOC_OBJ_CORE);
    if (depth < 0)
      depth = hwloc_.type_depth(topology_, HWLOC_OBJ_PU);  // threads of unknown cores
    const unsigned count = hwloc_.count_by_depth(topology_, depth);
    for (unsigned i = 0; i < count; ++i)
      cores.push_back(core(hwloc_.object_by_depth(topology_, depth, i)));
    return cores;
  }

 private:
  // hwloc obeys the cpuset by itself, and the affinity mask only when it is told to.
  void keep_usable() {
    if (hwloc_.is_this_system(topology_) == 0)
      return;
    const hwloc_bitmap_t mask = hwloc_.bitmap_alloc();
    if (mask == nullptr)
      return;
    if (hwloc_.get_cpubind(topology_, mask, HWLOC_CPUBIND_PROCESS) == 0)
      hwloc_.restrict_to(topology_, mask, 0);
    hwloc_.bitmap_free(mask);
  }

  CpuCore core(hwloc_obj_t object) const {
    CpuCore core;
    for (int cpu = hwloc_.bitmap_next(object->cpuset, -1); cpu >= 0;
         cpu = hwloc_.bitmap_next(object->cpuset, cpu)) {
      core.cpus.push_back(cpu);
    }
    core.numa_node = std::max(0, hwloc_.bitmap_next(object->nodeset, -1));
    core.socket = number_of(object, HWLOC_OBJ_PACKAGE).value_or(0);
    core.l3 = number_of(object, HWLOC_OBJ_L3CACHE).value_or(core.socket);
    return core;
  }

  // Returns the number of the host's object of `type` that holds `object`.
  static std::optional<int> number_of(hwloc_obj_t object, hwloc_obj_type_t type) {
    while (object != nullptr && object->type != type)
      object = object->parent;
    if (object == nullptr)
      return std::nullopt;
    return static_cast<int>(object->logical_index);
  }

  const Hwloc& hwloc_;
  hwloc_topology_t topology_ = nullptr;
};

}  // namespace

CpuCores read_cpu_cores() {
  const Hwloc hwloc;
  return Topology(hwloc).cores();
}

}  // namespace muster
