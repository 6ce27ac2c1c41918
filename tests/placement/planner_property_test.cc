// What holds for every plan, tried on random machines and requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/planner.h"
#include "muster/placement/policy/policy.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using Random = std::mt19937;

int below(Random& random, int limit) {
  return static_cast<int>(random() % static_cast<unsigned>(limit));
}

void randomize_gpu(Random& random, int host, Gpu& gpu) {
  if (below(random, 8) == 0)
    gpu.health = "GPU is lost";
  if (below(random, 5) == 0)
    gpu.model = "Other GPU";
  if (below(random, 4) > 0)
    gpu.numa_node = below(random, 2);
  gpu.memory_total_bytes = (8 + static_cast<uint64_t>(below(random, 72))) * kGiB;
  gpu.memory_free_bytes = gpu.memory_total_bytes / (1 + static_cast<uint64_t>(below(random, 3)));
  if (below(random, 4) == 0)
    gpu.processes = {{.pid = 1, .used_memory_bytes = kGiB}};
  if (below(random, 10) > 0)
    return;
  gpu.mig_enabled = true;
  for (int i = below(random, 4); i > 0; --i) {
    const std::string uuid = cat("MIG", test_uuid(host, gpu.index.value).substr(3), "-", i);
    gpu.mig.push_back({{uuid}, "1g.10gb", gpu.memory_total_bytes / 8});
  }
}

void add_cores(Random& random, Host& host) {
  for (int core = 0; core < 2 + below(random, 12); ++core) {
    host.cores.push_back(
        {.cpus = {2 * core, 2 * core + 1}, .numa_node = core % 2, .socket = 0, .l3 = core / 2});
  }
}

void add_links(Random& random, Host& host) {
  constexpr Link kLinks[] = {
      {LinkKind::nvlink, 1}, {LinkKind::nvlink, 4}, {LinkKind::pix, 0}, {LinkKind::sys, 0}};
  const size_t count = host.gpus.size();
  host.gpu_links.assign(count, std::vector<Link>(count, {LinkKind::self, 0}));
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < a; ++b) {
      host.gpu_links[a][b] = host.gpu_links[b][a] = kLinks[below(random, 4)];
    }
  }
}

Inventory random_inventory(Random& random) {
  std::vector<int> counts(1 + static_cast<size_t>(below(random, 4)));
  for (int& count : counts)
    count = below(random, 4) == 0 ? 0 : below(random, 9);
  Inventory inventory = machine(counts);
  for (size_t i = 0; i < inventory.hosts.size(); ++i) {
    Host& host = inventory.hosts[i];
    host.cpu_slots = 1 + below(random, 4);
    for (Gpu& gpu : host.gpus)
      randomize_gpu(random, static_cast<int>(i), gpu);
    std::shuffle(host.gpus.begin(), host.gpus.end(), random);
    if (below(random, 3) > 0)
      add_cores(random, host);
    if (below(random, 3) > 0)
      add_links(random, host);
  }
  return inventory;
}

std::string random_list(Random& random) {
  std::vector<int> indices = {0, 1, 2, 3, 4, 5, 6, 7};
  std::shuffle(indices.begin(), indices.end(), random);
  indices.resize(1 + static_cast<size_t>(below(random, 4)));
  return join(indices, ",");
}

std::string random_selection(Random& random) {
  constexpr const char* kSelections[] = {"idle",
                                         "free:1",
                                         "free:2,!0",
                                         "fastest:2",
                                         "!1",
                                         "mem>=30GiB",
                                         "free<20GB,!3",
                                         "model=test",
                                         "0-1,free:1",
                                         "n0:0;n1:!0",
                                         "all,model=ot",
                                         "fastest:1,0"};
  return below(random, 2) == 0 ? random_list(random)
                               : kSelections[below(random, std::size(kSelections))];
}

// What is asked of memory, speed and CPUs.
void randomize_needs(Random& random, Request& request) {
  const auto policy = static_cast<size_t>(below(random, 20));
  if (policy < policies().size())
    request.policy = policies()[policy].name;
  if (request.policy == "mesh")
    request.mesh = below(random, 2) == 0 ? parse_axes("dp=-1") : parse_axes("dp=-1,tp=2");
  if (below(random, 3) == 0) {
    request.scores = {
        {"Test GPU", 1 + below(random, 9)}, {"Other GPU", 2.5}, {"1", 4}, {"cpu", 0.5}};
    request.scores["Test GPU MIG 1g.10gb"] = request.scores["Other GPU MIG 1g.10gb"] = 0.25;
  }
  if (below(random, 4) == 0) {
    for (int i = below(random, 4); i > 0; --i) {
      request.rank_memory_bytes.push_back(static_cast<uint64_t>(below(random, 40)) * kGiB);
    }
  }
  if (below(random, 2) == 0)
    request.global_batch = below(random, 200);
  if (below(random, 6) == 0)
    request.numa_binding = static_cast<NumaBinding>(below(random, 5));
}

Request random_request(Random& random) {
  Request request;
  if (below(random, 2) == 0)
    request.nproc_per_node = 1 + below(random, 12);
  if (below(random, 3) == 0)
    request.gpus = random_selection(random);
  if (below(random, 4) == 0)
    request.masks.cuda = random_list(random);
  if (below(random, 5) == 0) {
    for (int i = 0; i < 3; ++i)
      request.map.push_back(below(random, 4));
  } else {
    randomize_needs(random, request);
  }
  if (below(random, 8) == 0)
    request.hosts = {{"n1", {}}, {"n0", 1}};
  request.cpu_only = below(random, 12) == 0;
  request.gpu_only = below(random, 12) == 0;
  request.surplus = static_cast<Surplus>(below(random, 4));
  request.visibility = static_cast<Visibility>(below(random, 4));
  return request;
}

const Host& host_of(const Inventory& inventory, const RankPlan& rank) {
  return *std::find_if(inventory.hosts.begin(), inventory.hosts.end(), [&](const Host& host) {
    return host.name == rank.host;
  });
}

void check_numbering(const Plan& plan) {
  ASSERT_FALSE(plan.ranks.empty());
  std::map<int, int> seen;  // host → ranks so far
  int last_host = 0;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    const RankPlan& rank = plan.ranks[i];
    ASSERT_EQ(rank.rank, static_cast<int>(i));
    ASSERT_GE(rank.host_index, last_host);
    last_host = rank.host_index;
    ASSERT_EQ(rank.local_rank, seen[rank.host_index]++);
    ASSERT_TRUE(i == 0 || (rank.host == plan.ranks[i - 1].host) == (rank.local_rank > 0));
    ASSERT_FALSE(rank.reason.empty());
  }
}

struct Device {
  const Gpu* gpu = nullptr;
  const MigInstance* instance = nullptr;  // of the GPU
};

Device device_of(const Inventory& inventory, const RankPlan& rank) {
  for (const Gpu& gpu : host_of(inventory, rank).gpus) {
    if (gpu.uuid == rank.device.uuid)
      return {&gpu};
    for (const MigInstance& instance : gpu.mig) {
      if (instance.uuid == rank.device.uuid)
        return {&gpu, &instance};
    }
  }
  return {};
}

// Every device is a healthy GPU of its host or a CPU slot, and used once unless sharing was asked
// for.
void check_devices(const Inventory& inventory, const Request& request, const Plan& plan) {
  std::set<std::string> used;
  for (const RankPlan& rank : plan.ranks) {
    const bool fresh = used.insert(cat(rank.host_index, " ", rank.device.id())).second;
    const bool cuda = rank.device.kind == DeviceAssignment::Kind::gpu;
    ASSERT_TRUE(fresh || (cuda && request.surplus == Surplus::share)) << rank.device.id();
    if (!cuda)
      continue;
    ASSERT_FALSE(request.cpu_only);
    const Device device = device_of(inventory, rank);
    ASSERT_NE(device.gpu, nullptr);
    ASSERT_EQ(device.gpu->index, rank.device.index);
    ASSERT_EQ(device.gpu->health, kHealthy);
    ASSERT_EQ(device.gpu->mig_enabled, device.instance != nullptr)
        << "a split GPU by its instances only";
  }
}

// The ranks of a device need no more together than it has free.
void check_memory(const Inventory& inventory, const Request& request, const Plan& plan) {
  if (request.rank_memory_bytes.empty())
    return;
  std::map<std::string, uint64_t> needed;
  for (const RankPlan& rank : plan.ranks) {
    if (rank.device.kind == DeviceAssignment::Kind::cpu)
      continue;
    const auto at =
        std::min(static_cast<size_t>(rank.local_rank), request.rank_memory_bytes.size() - 1);
    const uint64_t sum = needed[cat(rank.host, rank.device.id())] += request.rank_memory_bytes[at];
    const Device device = device_of(inventory, rank);
    const Gpu& gpu = *device.gpu;
    uint64_t free = gpu.memory_free_bytes;
    if (device.instance != nullptr) {
      const uint64_t used = gpu.memory_total_bytes - free;
      free =
          device.instance->memory_total_bytes - std::min(used, device.instance->memory_total_bytes);
    }
    ASSERT_LE(sum, free);
  }
}

void check_shares(const Request& request, const Plan& plan) {
  int64_t sum = 0;
  for (const RankPlan& rank : plan.ranks) {
    ASSERT_GE(rank.batch_share, request.global_batch > 0 ? 1 : 0);
    sum += rank.batch_share;
  }
  ASSERT_EQ(sum, request.global_batch);
}

// A bound rank has CPUs of its host, and with an exclusive binding CPUs that no other has.
void check_cpus(const Inventory& inventory, const Request& request, const Plan& plan) {
  std::set<std::string> taken;
  for (const RankPlan& rank : plan.ranks) {
    ASSERT_EQ(rank.bind_cpus,
              request.numa_binding != NumaBinding::none &&
                  rank.device.kind == DeviceAssignment::Kind::gpu);
    if (!rank.bind_cpus)
      continue;
    ASSERT_NE(rank.cpus, "");
    std::set<int> there;
    for (const CpuCore& core : host_of(inventory, rank).cores)
      there.insert(core.cpus.begin(), core.cpus.end());
    for (const int cpu : parse_cpu_list(rank.cpus)) {
      ASSERT_TRUE(there.contains(cpu));
      const bool fresh = taken.insert(cat(rank.host, " ", cpu)).second;
      ASSERT_TRUE(fresh || request.numa_binding != NumaBinding::exclusive);
    }
  }
}

// A process with the rank's CUDA_VISIBLE_DEVICES finds the rank's GPU under the rank's ordinal.
void check_ordinals(const Inventory& inventory, const Request& request, const Plan& plan) {
  for (const RankPlan& rank : plan.ranks) {
    const auto variables = visibility_variables(plan, rank);
    const auto set = variables.find("CUDA_VISIBLE_DEVICES");
    const auto mask = set == variables.end() ? std::nullopt : set->second;
    if (rank.device.kind == DeviceAssignment::Kind::cpu) {
      ASSERT_TRUE(!mask || mask->empty());
      continue;
    }
    const auto& gpus = host_of(inventory, rank).gpus;
    if (rank.device.uuid.value.starts_with("MIG-")) {
      ASSERT_EQ(rank.device.ordinal.value, 0) << "CUDA shows one instance";
      ASSERT_TRUE(mask && mask->starts_with(rank.device.uuid.value));
      continue;
    }
    std::vector<int> all(gpus.size());
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<int>(i);
    const std::string effective = mask ? *mask : request.masks.cuda.value_or(join(all, ","));
    const auto visible = visible_devices(gpus, effective);
    const auto ordinal = static_cast<size_t>(rank.device.ordinal.value);
    ASSERT_LT(ordinal, visible.gpus.size());
    ASSERT_EQ(gpus[visible.gpus[ordinal]].uuid, rank.device.uuid);
    if (plan.visibility != Visibility::job)
      continue;
    ASSERT_EQ(rank.device.ordinal.value, rank.local_rank);
  }
}

TEST(PlannerProperties, HoldOnRandomMachines) {
  int planned = 0;
  int refused = 0;
  std::map<std::string, int> by_policy;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    Random random(seed);
    const Inventory inventory = random_inventory(random);
    const Request request = random_request(random);
    Plan plan;
    try {
      plan = muster::plan(inventory, request);
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == ErrorCode::invalid_argument ||
                  error.code() == ErrorCode::unavailable);
      ++refused;
      continue;
    }
    ++planned;
    ++by_policy[plan.policy];
    check_numbering(plan);
    check_devices(inventory, request, plan);
    check_ordinals(inventory, request, plan);
    check_memory(inventory, request, plan);
    check_shares(request, plan);
    check_cpus(inventory, request, plan);
    ASSERT_EQ(muster::plan(inventory, request), plan) << "the same request gives the same plan";
    ASSERT_EQ(plan_from_json(plan_to_json(plan), "test"), plan);
    if (HasFatalFailure())
      return;
  }
  EXPECT_GT(planned, 600) << "the requests are not all nonsense";
  for (const Policy& policy : policies())
    EXPECT_GT(by_policy[policy.name], 5) << policy.name;
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace muster
