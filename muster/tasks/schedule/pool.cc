#include "muster/tasks/schedule/pool.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/device/links.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/selection.h"

namespace muster {

namespace {

bool is_allowed(const AllowedGpus& allowed, int host, int gpu) {
  return allowed.empty() || allowed[static_cast<size_t>(host)][static_cast<size_t>(gpu)];
}

// What the run may use of the host.
std::vector<UsableGpu> chosen_gpus(const Host& host, const PoolOptions& options) {
  UsableGpus usable = usable_gpus(host, options.masks);
  if (!options.gpus)
    return usable.gpus;
  if (part_for(*options.gpus, host) == nullptr)
    return {};
  return select_gpus(*options.gpus, host, usable, options.scores);
}

// The CPUs of the host with their NUMA nodes, a core's threads side by side.
std::vector<PoolCpu> cpus_by_node(const Host& host) {
  std::vector<PoolCpu> cpus;
  for (const CpuCore& core : host.cores) {
    for (const int cpu : core.cpus)
      cpus.push_back({cpu, core.numa_node});
  }
  std::stable_sort(cpus.begin(), cpus.end(), [](const PoolCpu& a, const PoolCpu& b) {
    return a.numa_node < b.numa_node;
  });
  return cpus;
}

}  // namespace

int gpus_of(const TaskNeed& need) {
  return need.gpus <= 0 ? 0 : std::max(1, static_cast<int>(std::lround(std::floor(need.gpus))));
}

int units_of(const TaskNeed& need) {
  if (need.gpus >= 1)
    return kWholeGpu;
  return std::clamp(static_cast<int>(std::lround(need.gpus * kWholeGpu)), 1, kWholeGpu);
}

int cpus_of(const TaskNeed& need) {
  return need.gpus > 0 ? need.cpus : std::max(1, need.cpus);
}

std::string describe(const TaskNeed& need) {
  const int count = cpus_of(need);
  std::string cpus = count == 0 ? std::string() : plural(count, "CPU");
  if (need.gpus <= 0)
    return cpus;
  std::string text = need.gpus < 1 ? cat(need.gpus, " of a GPU") : plural(gpus_of(need), "GPU");
  if (!need.model.empty())
    text += cat(" of model ", printable(need.model));
  if (need.memory_bytes > 0)
    text += cat(" with ", format_bytes(need.memory_bytes), " free");
  return cpus.empty() ? text : cat(text, " and ", cpus);
}

std::optional<int> PoolHost::find_gpu(const std::string& uuid) const {
  const auto found = std::find_if(
      gpus.begin(), gpus.end(), [&](const PoolGpu& gpu) { return gpu.uuid.value == uuid; });
  if (found == gpus.end())
    return std::nullopt;
  return static_cast<int>(found - gpus.begin());
}

Pool::Pool(Inventory inventory, const PoolOptions& options)
    : inventory_(std::move(inventory)),
      numa_binding_(options.numa_binding),
      scores_(options.scores) {
  if (options.gpus) {
    std::vector<const Host*> hosts;
    for (const Host& host : inventory_.hosts)
      hosts.push_back(&host);
    check_selection_hosts(*options.gpus, hosts);
  }
  for (const Host& host : inventory_.hosts)
    add_host(host, options);
}

void Pool::add_host(const Host& host, const PoolOptions& options) {
  PoolHost mine{.name = host.name,
                .cpus = options.cpus > 0 ? options.cpus : std::max(1, host.num_cores)};
  mine.cpus_left = mine.cpus;
  if (hosts_.size() < options.slots.size() && options.slots[hosts_.size()] > 0)
    mine.slots_left = options.slots[hosts_.size()];
  mine.free_cpus = cpus_by_node(host);
  if (mine.free_cpus.size() < static_cast<size_t>(mine.cpus))
    mine.free_cpus.clear();  // more than there are
  if (numa_binding_ == NumaBinding::exclusive && mine.free_cpus.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        cat("--numa-binding exclusive: expected a CPU with a known number for each that tasks may "
            "use, got ",
            mine.cpus,
            host.cores.empty() ? " CPUs whose numbers are not known" : " CPUs, more than there are",
            " (host ",
            host.name,
            "); give ",
            host.cores.empty() ? "" : "fewer --cpus, ",
            "node or none"));
  }
  for (const UsableGpu& gpu : chosen_gpus(host, options)) {
    const uint64_t free = free_memory_bytes(host, gpu);
    const uint64_t total = std::max(free, total_memory_bytes(host, gpu));
    mine.gpus.push_back({.device = gpu,
                         .uuid = uuid_of(host, gpu),
                         .index = gpu_of(host, gpu).index,
                         .model = model_of(host, gpu),
                         .numa_node = numa_node_of(host, gpu_of(host, gpu)),
                         .memory_bytes = total,
                         .memory_others = total - free,
                         .memory_left = free});
  }
  cpus_left_ += mine.cpus;
  units_left_ += static_cast<int64_t>(mine.gpus.size()) * kWholeGpu;
  hosts_.push_back(std::move(mine));
}

int Pool::num_gpus() const {
  size_t count = 0;
  for (const PoolHost& host : hosts_)
    count += host.gpus.size();
  return static_cast<int>(count);
}

AllowedGpus Pool::allowed(const std::string& on) const {
  if (on.empty())
    return {};
  const Selection selection(on);
  std::vector<const Host*> named;
  for (const Host& host : inventory_.hosts)
    named.push_back(&host);
  check_selection_hosts(selection, named);
  AllowedGpus allowed;
  std::optional<SelectionError> problem;
  bool fits_a_host = false;
  for (size_t h = 0; h < hosts_.size(); ++h) {
    const Host& host = inventory_.hosts[h];
    UsableGpus usable;
    for (const PoolGpu& gpu : hosts_[h].gpus)
      usable.gpus.push_back(gpu.device);
    std::vector<UsableGpu> selected;
    if (const SelectionPart* const part = part_for(selection, host)) {
      try {
        selected = select_gpus(selection, host, usable, scores_);
        fits_a_host = true;
      } catch (const SelectionError& error) {
        if (!part->host.empty())
          throw;
        if (!problem)
          problem = error;
      }
    }
    std::vector<bool> row;
    for (const PoolGpu& gpu : hosts_[h].gpus) {
      row.push_back(std::find(selected.begin(), selected.end(), gpu.device) != selected.end());
    }
    allowed.push_back(std::move(row));
  }
  if (problem && !fits_a_host)
    throw SelectionError(*problem);
  return allowed;
}

std::string Pool::unfit(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const {
  const PoolGpu& it = hosts_[static_cast<size_t>(host)].gpus[static_cast<size_t>(gpu)];
  if (!is_allowed(allowed, host, gpu))
    return "not among those that the task is for";
  if (!is_model(it.model, need))
    return cat("is a ", it.model);
  if (it.memory_bytes >= need.memory_bytes)
    return {};
  if (it.memory_bytes == 0)
    return "has memory of a size that is not known";
  return cat("has ", format_bytes(it.memory_bytes));
}

// As `unfit`, without the words.
bool Pool::suits(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const {
  const PoolGpu& it = hosts_[static_cast<size_t>(host)].gpus[static_cast<size_t>(gpu)];
  return is_allowed(allowed, host, gpu) && it.memory_bytes >= need.memory_bytes &&
         is_model(it.model, need);
}

bool Pool::has_room(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const {
  const PoolGpu& it = hosts_[static_cast<size_t>(host)].gpus[static_cast<size_t>(gpu)];
  return it.units_left - it.leased_units >= units_of(need) && it.memory_left >= need.memory_bytes &&
         suits(need, allowed, host, gpu);
}

void Pool::set_memory_in_use(int host, int gpu, uint64_t bytes) {
  PoolGpu& it = gpu_at(host, gpu);
  if (it.units_left != kWholeGpu)
    return;
  it.memory_others = std::min(bytes, it.memory_bytes);
  it.memory_left = it.memory_bytes - it.memory_others;
}

void Pool::set_leased(int host, int gpu, int units, const std::string& by) {
  gpu_at(host, gpu).leased_units = units;
  gpu_at(host, gpu).leased_by = by;
}

bool Pool::could_meet(const TaskNeed& need, const AllowedGpus& allowed) const {
  for (int h = 0; h < static_cast<int>(hosts_.size()); ++h) {
    const PoolHost& host = hosts_[static_cast<size_t>(h)];
    if (host.cpus < cpus_for(need, host))
      continue;
    int suitable = 0;
    for (int g = 0; g < static_cast<int>(host.gpus.size()); ++g)
      suitable += suits(need, allowed, h, g) ? 1 : 0;
    if (suitable >= gpus_of(need))
      return true;
  }
  return false;
}

int Pool::cpus_for(const TaskNeed& need, const PoolHost& host) const {
  if (numa_binding_ != NumaBinding::exclusive || need.gpus <= 0 || need.cpus > 0)
    return cpus_of(need);
  const double part = need.gpus / static_cast<double>(std::max<size_t>(1, host.gpus.size()));
  return std::max(1, static_cast<int>(host.cpus * part));
}

std::optional<Allocation> Pool::find(const TaskNeed& need,
                                     const AllowedGpus& allowed,
                                     const Reserved& reserved) const {
  std::optional<Allocation> best;
  double best_link = 0;
  size_t best_left = 0;
  for (int h = 0; h < static_cast<int>(hosts_.size()); ++h) {
    const PoolHost& host = hosts_[static_cast<size_t>(h)];
    if (host.set_aside || host.slots_left < 1)
      continue;
    const int cpus = cpus_for(need, host);
    if (cpus > 0 && host.cpus_left - reserved_cpus(reserved, h) < cpus)
      continue;
    std::vector<int> fitting;
    if (need.gpus > 0) {
      for (int g = 0; g < static_cast<int>(host.gpus.size()); ++g) {
        if (!is_reserved(reserved, h, g) && has_room(need, allowed, h, g))
          fitting.push_back(g);
      }
    }
    // For several GPUs that with the fastest links among them, then the fullest that will do;
    // without GPUs, the first.
    const bool fuller = need.gpus > 0 && fitting.size() < best_left;
    if (best && gpus_of(need) <= 1 && !fuller)
      continue;
    auto gpus = choose_gpus(need, h, fitting);
    if (!gpus)
      continue;
    const double link = slowest_link(h, *gpus);
    if (best && (link < best_link || (link == best_link && !fuller)))
      continue;
    best_link = link;
    best_left = fitting.size();
    best = Allocation{.host = h,
                      .gpus = std::move(*gpus),
                      .units = units_of(need),
                      .memory_bytes = need.memory_bytes,
                      .cpus = cpus};
  }
  if (best) {
    best->own_cpus = choose_cpus(
        numa_binding_ == NumaBinding::exclusive ? best->cpus : need.cpus, best->host, best->gpus);
    best->bound = bind(best->host, *best);
  }
  return best;
}

std::optional<std::vector<int>> Pool::choose_gpus(const TaskNeed& need,
                                                  int host,
                                                  std::vector<int> fitting) const {
  const auto count = static_cast<size_t>(gpus_of(need));
  if (count == 0)
    return std::vector<int>();
  if (fitting.size() < count)
    return std::nullopt;
  if (count > 1)
    return best_linked(host, fitting, static_cast<int>(count));
  const auto& gpus = hosts_[static_cast<size_t>(host)].gpus;
  // Best fit: what is left over can be of most use to others.
  const auto smaller = [&](int a, int b) {
    const PoolGpu& one = gpus[static_cast<size_t>(a)];
    const PoolGpu& other = gpus[static_cast<size_t>(b)];
    return one.units_left != other.units_left ? one.units_left < other.units_left
                                              : one.memory_left < other.memory_left;
  };
  return std::vector<int>{*std::min_element(fitting.begin(), fitting.end(), smaller)};
}

// By the policy "topology" where links are known, else by "pack": of as few NUMA nodes as can be.
std::vector<int> Pool::best_linked(int host, const std::vector<int>& fitting, int count) const {
  std::vector<int> key = {host, count};
  key.insert(key.end(), fitting.begin(), fitting.end());
  if (const auto known = linked_.find(key); known != linked_.end())
    return known->second;
  const PoolHost& mine = hosts_[static_cast<size_t>(host)];
  const Host& real = inventory_.hosts[static_cast<size_t>(host)];
  std::vector<UsableGpu> devices;
  bool whole = true;
  for (const int at : fitting) {
    devices.push_back(mine.gpus[static_cast<size_t>(at)].device);
    whole &= devices.back().mig < 0;
  }
  const Request request;
  const PolicyInput input{real, devices, request};
  const auto known_link = [](const Link& link) {
    return link.kind != LinkKind::unknown && link.kind != LinkKind::self;
  };
  const bool linked =
      whole && std::any_of(real.gpu_links.begin(), real.gpu_links.end(), [&](const auto& row) {
        return std::any_of(row.begin(), row.end(), known_link);
      });
  const Policy& policy = find_policy(linked ? "topology" : "pack");
  std::vector<int> chosen;
  for (const PolicyChoice& choice : policy.choose(input, count)) {
    const auto at = std::find(devices.begin(), devices.end(), choice.gpu) - devices.begin();
    chosen.push_back(fitting[static_cast<size_t>(at)]);
  }
  if (linked_.size() > 10'000)
    linked_.clear();
  return linked_[key] = chosen;
}

// In GB/s, of those along the ring; 0: not known, or a single GPU.
double Pool::slowest_link(int host, const std::vector<int>& gpus) const {
  const Host& real = inventory_.hosts[static_cast<size_t>(host)];
  const auto& mine = hosts_[static_cast<size_t>(host)].gpus;
  if (gpus.size() < 2)
    return 0;
  double slowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < gpus.size(); ++i) {
    const UsableGpu& from = mine[static_cast<size_t>(gpus[i])].device;
    const UsableGpu& to = mine[static_cast<size_t>(gpus[(i + 1) % gpus.size()])].device;
    if (from.position >= real.gpu_links.size() ||
        to.position >= real.gpu_links[from.position].size())
      return 0;
    slowest = std::min(slowest,
                       link_bandwidth(real.gpus[from.position],
                                      real.gpus[to.position],
                                      real.gpu_links[from.position][to.position]));
  }
  return slowest;
}

// CPUs of the GPUs' NUMA node first; for a CPU task, of the node whose free ones fit best.
std::vector<int> Pool::choose_cpus(int cpus, int host, const std::vector<int>& gpus) const {
  const PoolHost& mine = hosts_[static_cast<size_t>(host)];
  const auto count = static_cast<size_t>(cpus);
  if (count == 0 || mine.free_cpus.size() < count)
    return {};
  std::map<int, size_t> free;
  for (const PoolCpu& cpu : mine.free_cpus)
    ++free[cpu.numa_node];
  int node = mine.free_cpus.front().numa_node;
  size_t least = mine.free_cpus.size() + 1;
  for (const auto& [number, left] : free) {
    if (left >= count && left < least) {
      node = number;
      least = left;
    }
  }
  if (!gpus.empty())
    node = mine.gpus[static_cast<size_t>(gpus[0])].numa_node.value_or(node);
  std::vector<int> near;
  std::vector<int> far;
  for (const PoolCpu& cpu : mine.free_cpus)
    (cpu.numa_node == node ? near : far).push_back(cpu.cpu);
  near.insert(near.end(), far.begin(), far.end());
  near.resize(count);
  std::sort(near.begin(), near.end());
  return near;
}

std::vector<int> Pool::bind(int host, const Allocation& where) const {
  if (numa_binding_ == NumaBinding::none)
    return {};
  if (numa_binding_ == NumaBinding::exclusive)
    return where.own_cpus;
  const std::vector<PoolCpu> all = cpus_by_node(inventory_.hosts[static_cast<size_t>(host)]);
  std::set<int> nodes;
  for (const int gpu : where.gpus)
    nodes.insert(
        hosts_[static_cast<size_t>(host)].gpus[static_cast<size_t>(gpu)].numa_node.value_or(-1));
  for (const PoolCpu& cpu : all) {
    if (std::find(where.own_cpus.begin(), where.own_cpus.end(), cpu.cpu) != where.own_cpus.end())
      nodes.insert(cpu.numa_node);
  }
  std::vector<int> bound;
  for (const PoolCpu& cpu : all) {
    if (nodes.contains(cpu.numa_node))
      bound.push_back(cpu.cpu);
  }
  // All of them is no binding; and where a GPU's node is not known, or has no CPU of ours, there is
  // nothing near.
  if (bound.size() == all.size() || nodes.contains(-1))
    return {};
  std::sort(bound.begin(), bound.end());
  return bound;
}

void Pool::take(const Allocation& allocation) {
  PoolHost& host = hosts_[static_cast<size_t>(allocation.host)];
  --host.slots_left;
  host.cpus_left -= allocation.cpus;
  cpus_left_ -= allocation.cpus;
  for (const int at : allocation.gpus) {
    PoolGpu& gpu = gpu_at(allocation.host, at);
    gpu.units_left -= allocation.units;
    gpu.memory_left -= allocation.memory_bytes;
    units_left_ -= allocation.units;
  }
  std::erase_if(host.free_cpus, [&](const PoolCpu& cpu) {
    return std::find(allocation.own_cpus.begin(), allocation.own_cpus.end(), cpu.cpu) !=
           allocation.own_cpus.end();
  });
}

void Pool::give_back(const Allocation& allocation) {
  PoolHost& host = hosts_[static_cast<size_t>(allocation.host)];
  ++host.slots_left;
  host.cpus_left += allocation.cpus;
  cpus_left_ += allocation.cpus;
  for (const int at : allocation.gpus) {
    PoolGpu& gpu = gpu_at(allocation.host, at);
    gpu.units_left += allocation.units;
    gpu.memory_left += allocation.memory_bytes;
    units_left_ += allocation.units;
  }
  if (allocation.own_cpus.empty())
    return;
  for (const PoolCpu& cpu : cpus_by_node(inventory_.hosts[static_cast<size_t>(allocation.host)])) {
    if (std::find(allocation.own_cpus.begin(), allocation.own_cpus.end(), cpu.cpu) !=
        allocation.own_cpus.end())
      host.free_cpus.push_back(cpu);
  }
  std::sort(host.free_cpus.begin(), host.free_cpus.end(), [](const PoolCpu& a, const PoolCpu& b) {
    return a.numa_node != b.numa_node ? a.numa_node < b.numa_node : a.cpu < b.cpu;
  });
}

}  // namespace muster
