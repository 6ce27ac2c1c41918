// The pool counts down: each host begins with all of its CPUs, and each GPU with all of its units
// and its free memory. `take` subtracts an allocation and `give_back` adds it again. `find` asks
// every host for an offer and keeps the best; it changes nothing.
#include "muster/tasks/schedule/device_pool.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/device/links.h"
#include "muster/device/numbers.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

namespace {

// So many results of best_linked are remembered before all are forgotten.
constexpr size_t kMostLinkedKept = 10'000;

bool is_allowed(const AllowedGpus& allowed, int host, int gpu) {
  return allowed.empty() || allowed[host][gpu];
}

// The GPUs of the host that the run may use.
UsableGpuList chosen_gpus(const Host& host, const PoolOptions& options) {
  UsableGpus usable = usable_gpus(host, options.masks);
  if (!options.gpus)
    return usable.gpus;
  if (part_for(*options.gpus, host) == nullptr)
    return {};
  return select_gpus(*options.gpus, host, usable, options.scores);
}

// The CPUs of the host with their NUMA nodes, a core's threads side by side.
PoolCpus cpus_by_node(const Host& host) {
  PoolCpus cpus;
  for (const CpuCore& core : host.cores) {
    for (const int cpu : core.cpus)
      cpus.push_back({cpu, core.numa_node});
  }
  std::ranges::stable_sort(cpus, {}, &PoolCpu::numa_node);
  return cpus;
}

// The NUMA node that suits a task of so many CPUs: the one with the fewest free CPUs that are
// enough, so that larger tasks find room elsewhere. Where no node has enough, it is the first.
int best_node(const PoolCpus& free_cpus, int num_cpus) {
  std::map<int, int> num_free;  // by node
  for (const PoolCpu& cpu : free_cpus)
    ++num_free[cpu.numa_node];
  int best = free_cpus.front().numa_node;
  int fewest = std::numeric_limits<int>::max();
  for (const auto& [node, count] : num_free) {
    if (count >= num_cpus && count < fewest) {
      best = node;
      fewest = count;
    }
  }
  return best;
}

// Whether the CPU is one that the allocation counts as its own.
bool has_cpu(const Allocation& allocation, const PoolCpu& cpu) {
  return contains(allocation.own_cpus, cpu.cpu);
}

// Whether the host tells how any two of its GPUs are linked.
bool knows_links(const Host& host) {
  const auto is_known = [](const Link& link) {
    return !is_one_of(link.kind, LinkKind::unknown, LinkKind::self);
  };
  return any_of(host.gpu_links, [&](const auto& row) { return any_of(row, is_known); });
}

// CPUs of one's own need numbers: without them, tasks could not be kept apart.
[[noreturn]] void fail_exclusive(const PoolHost& mine, bool numbers_known) {
  throw invalid_argument(
      "--numa-binding exclusive: expected a CPU with a known number for each that tasks may "
      "use, got ",
      mine.cpus,
      numbers_known ? " CPUs, more than there are" : " CPUs whose numbers are not known",
      " (host ",
      mine.name,
      "); give ",
      numbers_known ? "fewer --cpus, " : "",
      "node or none");
}

// A GPU as the pool begins with it. Memory that is in use by now is other programs'.
PoolGpu pool_gpu(const Host& host, const UsableGpu& gpu) {
  const uint64_t free = free_memory_bytes(host, gpu);
  const uint64_t total = std::max(free, total_memory_bytes(host, gpu));
  return {.device = gpu,
          .uuid = uuid_of(host, gpu),
          .index = gpu_of(host, gpu).index,
          .model = model_of(host, gpu),
          .numa_node = numa_node_of(host, gpu_of(host, gpu)),
          .memory_bytes = total,
          .memory_others = total - free,
          .memory_left = free};
}

// Whether other programs use so much of the GPU's memory that they compute there.
bool is_disturbed(const PoolGpu& gpu) {
  return !is_little_memory(gpu.memory_others, gpu.memory_bytes);
}

}  // namespace

// One host's offer for a need, and what `find` compares it by.
struct DevicePool::Offer {
  Allocation where{};
  size_t num_fitting = 0;  // GPUs of the host that would do
  bool disturbed = false;  // by other programs on its GPUs
  double slowest_link = 0;

  // GPUs for oneself win, then faster links, then the fuller host, so that empty hosts stay whole
  // for larger tasks.
  bool is_better_than(const Offer& other) const {
    return std::tuple(other.disturbed, slowest_link, other.num_fitting) >
           std::tuple(disturbed, other.slowest_link, num_fitting);
  }
};

void check_selection(const Selection& selection, const Inventory& inventory) {
  const auto hosts = mapped(inventory.hosts, [](const Host& host) { return &host; });
  check_selection_hosts(selection, hosts);
}

// A part of a GPU is one GPU, of which fewer units are taken.
int gpus_of(const TaskNeed& need) {
  return need.gpus <= 0 ? 0 : std::max(1, static_cast<int>(need.gpus));
}

int units_of(const TaskNeed& need) {
  if (need.gpus >= 1)
    return kWholeGpu;
  return std::clamp(static_cast<int>(std::lround(need.gpus * kWholeGpu)), 1, kWholeGpu);
}

int cpus_of(const TaskNeed& need) {
  return need.gpus > 0 ? need.cpus : std::max(1, need.cpus);
}

// CPUs are left out where a need with GPUs gives no number of them.
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
  return index_with(gpus, uuid, [](const PoolGpu& gpu) { return gpu.uuid.value; });
}

DevicePool::DevicePool(Inventory inventory, const PoolOptions& options)
    : inventory_(std::move(inventory)),
      numa_binding_(options.numa_binding),
      scores_(options.scores) {
  if (options.gpus)
    check_selection(*options.gpus, inventory_);
  for (const Host& host : inventory_.hosts)
    add_host(host, options);
}

// The host's GPUs that the run may not use are no part of the pool.
void DevicePool::add_host(const Host& host, const PoolOptions& options) {
  const size_t number = hosts_.size();
  PoolHost mine{.name = host.name,
                .cpus = options.cpus > 0 ? options.cpus : std::max(1, host.num_cores)};
  mine.cpus_left = mine.cpus;
  if (number < options.slots.size() && options.slots[number] > 0)
    mine.slots_left = options.slots[number];
  mine.free_cpus = cpus_by_node(host);
  if (std::ssize(mine.free_cpus) < mine.cpus)
    mine.free_cpus.clear();  // more are counted than there are: none is any task's own
  if (numa_binding_ == NumaBinding::exclusive && mine.free_cpus.empty())
    fail_exclusive(mine, !host.cores.empty());
  for (const UsableGpu& gpu : chosen_gpus(host, options)) {
    mine.gpus.push_back(pool_gpu(host, gpu));
    ++num_gpus_;
    units_left_ += kWholeGpu;
  }
  cpus_left_ += mine.cpus;
  hosts_.push_back(std::move(mine));
}

// A text that names its hosts must fit on each of these. One without hosts may fail on some, as
// long as it fits one; then the first problem is told.
AllowedGpus DevicePool::allowed(const std::string& on) const {
  if (on.empty())
    return {};
  const Selection selection(on);
  check_selection(selection, inventory_);
  AllowedGpus allowed;
  std::optional<SelectionError> problem;  // of the first host that the text does not fit
  bool fits_a_host = false;
  for (const size_t h : indices_of(hosts_)) {
    const Host& host = inventory_.hosts[h];
    const SelectionPart* const part = part_for(selection, host);
    UsableGpuList selected;
    try {
      if (part != nullptr) {
        selected = select_gpus(selection, host, usable_in_pool(h), scores_);
        fits_a_host = true;
      }
    } catch (const SelectionError& error) {
      if (!part->host.empty())
        throw;
      if (!problem)
        problem = error;
    }
    auto row =
        mapped(hosts_[h].gpus, [&](const PoolGpu& gpu) { return contains(selected, gpu.device); });
    allowed.push_back(std::move(row));
  }
  if (problem && !fits_a_host)
    throw SelectionError(*problem);
  return allowed;
}

// The host's GPUs that are in the pool, as a selection takes them.
UsableGpus DevicePool::usable_in_pool(size_t host) const {
  UsableGpus usable;
  usable.gpus = mapped(hosts_[host].gpus, &PoolGpu::device);
  return usable;
}

std::string DevicePool::unfit(const TaskNeed& need,
                              const AllowedGpus& allowed,
                              int host,
                              int gpu) const {
  const PoolGpu& it = hosts_[host].gpus[gpu];
  if (!is_allowed(allowed, host, gpu))
    return "not among those that the task is for";
  if (!is_model(it.model, need))
    return cat("is a ", it.model);
  if (it.memory_bytes >= need.memory_bytes)
    return {};
  if (it.memory_bytes == 0)
    return "has memory of a size that is not known";
  return cat("has ", format_compared_bytes({it.memory_bytes, need.memory_bytes})[0]);
}

// This says yes or no where `unfit` finds words: the schedule asks it far more often.
bool DevicePool::suits(const TaskNeed& need, const AllowedGpus& allowed, int host, int gpu) const {
  const PoolGpu& it = hosts_[host].gpus[gpu];
  return is_allowed(allowed, host, gpu) && it.memory_bytes >= need.memory_bytes &&
         is_model(it.model, need);
}

bool DevicePool::has_room(const TaskNeed& need,
                          const AllowedGpus& allowed,
                          int host,
                          int gpu) const {
  const PoolGpu& it = hosts_[host].gpus[gpu];
  return it.units_left - it.leased_units >= units_of(need) && it.memory_left >= need.memory_bytes &&
         suits(need, allowed, host, gpu);
}

// Memory that a task of the run uses cannot be told from what others use.
void DevicePool::set_memory_in_use(int host, int gpu, uint64_t bytes) {
  PoolGpu& it = gpu_at(host, gpu);
  if (it.units_left != kWholeGpu)
    return;
  it.memory_others = std::min(bytes, it.memory_bytes);
  it.memory_left = it.memory_bytes - it.memory_others;
}

void DevicePool::set_leased(int host, int gpu, int units, const std::string& by) {
  gpu_at(host, gpu).leased_units = units;
  gpu_at(host, gpu).leased_by = by;
}

// Nothing is taken of an empty pool, so that only what each host has counts.
bool DevicePool::could_meet(const TaskNeed& need, const AllowedGpus& allowed) const {
  for (const int h : int_indices_of(hosts_)) {
    const PoolHost& host = hosts_[h];
    if (host.cpus < cpus_for(need, host))
      continue;
    const auto suitable = std::ranges::count_if(int_indices_of(host.gpus),
                                                [&](int g) { return suits(need, allowed, h, g); });
    if (suitable >= gpus_of(need))
      return true;
  }
  return false;
}

// A task with GPUs gets their share of exclusive CPUs, unless it says how many it wants.
int DevicePool::cpus_for(const TaskNeed& need, const PoolHost& host) const {
  if (numa_binding_ != NumaBinding::exclusive || need.gpus <= 0 || need.cpus > 0)
    return cpus_of(need);
  const double part = need.gpus / static_cast<double>(std::max<size_t>(1, host.gpus.size()));
  return std::max(1, static_cast<int>(host.cpus * part));
}

std::optional<Allocation> DevicePool::find(const TaskNeed& need,
                                           const AllowedGpus& allowed,
                                           const Reserved& reserved) const {
  std::optional<Offer> best;
  for (const int h : int_indices_of(hosts_)) {
    auto offer = offer_of(h, need, allowed, reserved);
    if (offer && (!best || offer->is_better_than(*best)))
      best = std::move(offer);
  }
  if (!best)
    return std::nullopt;
  Allocation& where = best->where;
  const int num_own = numa_binding_ == NumaBinding::exclusive ? where.cpus : need.cpus;
  where.own_cpus = choose_cpus(num_own, where.host, where.gpus);
  where.bound = bind(where);
  return std::move(where);
}

// The host's offer, without its CPUs' numbers; nothing: it cannot meet the need now.
std::optional<DevicePool::Offer> DevicePool::offer_of(int host,
                                                      const TaskNeed& need,
                                                      const AllowedGpus& allowed,
                                                      const Reserved& reserved) const {
  const PoolHost& mine = hosts_[host];
  if (mine.set_aside || mine.slots_left < 1)
    return std::nullopt;
  const int cpus = cpus_for(need, mine);
  if (cpus > 0 && mine.cpus_left - reserved_cpus(reserved, host) < cpus)
    return std::nullopt;
  Ints fitting;
  if (need.gpus > 0) {
    fitting = filtered_indices(int_size(mine.gpus), [&](int g) {
      return !is_reserved(reserved, host, g) && has_room(need, allowed, host, g);
    });
  }
  auto gpus = choose_gpus(need, host, fitting);
  if (!gpus)
    return std::nullopt;
  const double link = slowest_link(host, *gpus);
  const bool disturbed = any_of(*gpus, [&](int g) { return is_disturbed(mine.gpus[g]); });
  return Offer{.where = {.host = host,
                         .gpus = std::move(*gpus),
                         .units = units_of(need),
                         .memory_bytes = need.memory_bytes,
                         .cpus = cpus},
               .num_fitting = fitting.size(),
               .disturbed = disturbed,
               .slowest_link = link};
}

// GPUs that other programs use are taken only where there are too few others. Several are chosen by
// their links; a single one by its size.
std::optional<Ints> DevicePool::choose_gpus(const TaskNeed& need,
                                            int host,
                                            const Ints& fitting) const {
  const int count = gpus_of(need);
  if (count == 0)
    return Ints();
  if (std::ssize(fitting) < count)
    return std::nullopt;
  Ints calm = fitting;
  std::erase_if(calm, [&](int g) { return is_disturbed(hosts_[host].gpus[g]); });
  const Ints& chosen_of = std::ssize(calm) < count ? fitting : calm;
  if (count > 1)
    return best_linked(host, chosen_of, count);
  // The best fit is the smallest: what stays free can be of most use to others.
  const auto what_is_left = [&](int g) {
    const PoolGpu& gpu = hosts_[host].gpus[g];
    return std::pair(gpu.units_left, gpu.memory_left);
  };
  return Ints{*std::ranges::min_element(chosen_of, {}, what_is_left)};
}

// The policy "topology" chooses where links are known, else "pack", which keeps to as few NUMA
// nodes as it can.
Ints DevicePool::best_linked(int host, const Ints& fitting, int count) const {
  Ints key = {host, count};
  append_all(key, fitting);
  if (const auto known = linked_.find(key); known != linked_.end())
    return known->second;
  const Host& real = inventory_.hosts[host];
  auto devices = mapped(fitting, [&](const int at) { return hosts_[host].gpus[at].device; });
  const bool any_mig = any_of(devices, &UsableGpu::is_instance);
  const bool linked = !any_mig && knows_links(real);
  const Policy& policy = find_policy(linked ? "topology" : "pack");
  const Request request;
  const auto gpu_of_choice = [&](const PolicyChoice& choice) {
    return fitting[std::ranges::find(devices, choice.gpu) - devices.begin()];
  };
  const auto chosen = mapped(policy.choose({real, devices, request}, count), gpu_of_choice);
  if (linked_.size() > kMostLinkedKept)
    linked_.clear();
  return linked_[key] = chosen;
}

// The bandwidth of the slowest link along the ring in GB/s; 0: not known, or a single GPU.
double DevicePool::slowest_link(int host, const Ints& gpus) const {
  const Host& real = inventory_.hosts[host];
  const auto& mine = hosts_[host].gpus;
  if (gpus.size() < 2)
    return 0;
  double slowest = std::numeric_limits<double>::infinity();
  for (const size_t i : indices_of(gpus)) {
    const size_t from = mine[gpus[i]].device.position;
    const size_t to = mine[gpus[(i + 1) % gpus.size()]].device.position;
    if (from >= real.gpu_links.size() || to >= real.gpu_links[from].size())
      return 0;
    slowest =
        std::min(slowest, link_bandwidth(real.gpus[from], real.gpus[to], real.gpu_links[from][to]));
  }
  return slowest;
}

// CPUs of the first GPU's NUMA node come first; a CPU task gets those of the node that suits it.
// The numbers are sorted. None where the free CPUs are too few or not known.
Ints DevicePool::choose_cpus(int cpus, int host, const Ints& gpus) const {
  const PoolHost& mine = hosts_[host];
  if (cpus == 0 || std::ssize(mine.free_cpus) < cpus)
    return {};
  int node = best_node(mine.free_cpus, cpus);
  if (!gpus.empty())
    node = mine.gpus[gpus[0]].numa_node.value_or(node);
  PoolCpus near_first = mine.free_cpus;
  std::ranges::stable_partition(near_first,
                                [&](const PoolCpu& cpu) { return cpu.numa_node == node; });
  Ints chosen = mapped(near_first | std::views::take(cpus), &PoolCpu::cpu);
  std::ranges::sort(chosen);
  return chosen;
}

// The CPUs that the task is bound to: all of the nodes where its GPUs and its own CPUs are.
Ints DevicePool::bind(const Allocation& where) const {
  if (numa_binding_ == NumaBinding::none)
    return {};
  if (numa_binding_ == NumaBinding::exclusive)
    return where.own_cpus;
  const auto all = cpus_by_node(inventory_.hosts[where.host]);
  IntSet nodes;
  for (const int gpu : where.gpus)
    nodes.insert(hosts_[where.host].gpus[gpu].numa_node.value_or(-1));
  for (const PoolCpu& cpu : all) {
    if (has_cpu(where, cpu))
      nodes.insert(cpu.numa_node);
  }
  Ints bound = mapped(
      all | std::views::filter([&](const PoolCpu& cpu) { return nodes.contains(cpu.numa_node); }),
      &PoolCpu::cpu);
  // All CPUs are no binding. Where a GPU's node is not known, or has no CPU of ours, nothing is
  // near.
  if (bound.size() == all.size() || nodes.contains(-1))
    return {};
  std::ranges::sort(bound);
  return bound;
}

// Takes what is counted, `sign` times: 1, or -1 to give it back.
void DevicePool::book(const Allocation& allocation, int sign) {
  PoolHost& host = hosts_[allocation.host];
  host.slots_left -= sign;
  host.cpus_left -= sign * allocation.cpus;
  cpus_left_ -= sign * allocation.cpus;
  for (const int at : allocation.gpus) {
    PoolGpu& gpu = gpu_at(allocation.host, at);
    gpu.units_left -= sign * allocation.units;
    gpu.memory_left -= sign * allocation.memory_bytes;  // -1 is 2^64 - 1 here: it wraps around
    units_left_ -= sign * allocation.units;
  }
}

// The caller has asked `find`: it is not checked again whether there is room.
void DevicePool::take(const Allocation& allocation) {
  book(allocation, 1);
  std::erase_if(hosts_[allocation.host].free_cpus,
                [&](const PoolCpu& cpu) { return has_cpu(allocation, cpu); });
}

// CPUs are sorted again, so that choices do not depend on the order of ends.
void DevicePool::give_back(const Allocation& allocation) {
  book(allocation, -1);
  if (allocation.own_cpus.empty())
    return;
  PoolCpus& cpus = hosts_[allocation.host].free_cpus;
  append_all(cpus,
             filtered(cpus_by_node(inventory_.hosts[allocation.host]),
                      [&](const PoolCpu& cpu) { return has_cpu(allocation, cpu); }));
  std::ranges::sort(cpus, {}, [](const PoolCpu& cpu) { return std::pair(cpu.numa_node, cpu.cpu); });
}

}  // namespace muster
