// What a request leaves open is filled in first, as far as it needs no device: the policy, and the
// number of ranks that a mesh asks for. Errors name the flag that has to change.
#include "muster/placement/checked_request.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/scores.h"

namespace muster {
namespace {

[[noreturn]] void refuse(const auto&... message) {
  throw invalid_argument(printable(cat(message...)));
}

// Returns what tells each rank's GPU one by one; empty when nothing does.
std::string flag_that_lists(const Request& request) {
  if (request.map_of)
    return "--map-command";
  if (!request.map.empty())
    return "--map";
  return request.choose ? "Request::choose" : "";
}

void check_policy(const Request& request) {
  if (!request.map.empty() && request.choose)
    refuse("--map: expected a map or Request::choose, got both");
  const auto lists = flag_that_lists(request);
  if (!lists.empty() && request.policy != "list") {
    refuse(lists, ": expected policy list, got ", request.policy, "; leave --policy out");
  }
  if (request.policy == "mesh" && request.mesh.empty())
    refuse("--policy mesh: expected a mesh to order the GPUs for, got none; give --mesh dp=2,tp=2");
  find_policy(request.policy);
}

// Whether something beside the policy goes by scores.
bool weighs_by_scores(const Request& request) {
  return request.global_batch > 0 || request.gpus.has({SelectionItem::Kind::fastest});
}

std::string default_policy(const Request& request) {
  if (!flag_that_lists(request).empty())
    return "list";
  if (!request.rank_memory_bytes.empty())
    return "memory";
  if (!request.mesh.empty())
    return "mesh";
  const bool only_for_policy = !request.scores.empty() && !weighs_by_scores(request);
  return only_for_policy ? "fastest" : "sequential";
}

// Scores that nothing goes by would be a silent disappointment.
void check_scores_are_used(const Request& request) {
  if (request.scores.empty() || request.policy == "fastest" || weighs_by_scores(request))
    return;
  refuse(
      "--scores: expected policy fastest, --gpus fastest:N or --global-batch, which go by "
      "them, got policy ",
      request.policy,
      " alone; leave --scores out, or add one of these");
}

// Returns the first few hosts of a large inventory, for errors.
std::string names_of(const Inventory& inventory) {
  constexpr size_t kMaxNamed = 8;
  return join_first(mapped(inventory.hosts, &Host::name), ", ", kMaxNamed);
}

// Returns the flag by which each rank has one GPU, or none; empty when there is no such flag.
std::string flag_of_one_gpu_each(const Request& request) {
  const std::pair<bool, const char*> flags[] = {
      {!request.mesh.empty(), "--mesh"},
      {!request.rank_memory_bytes.empty(), "--rank-memory"},
      {request.choose != nullptr, "Request::choose"},
      {request.surplus == Surplus::share, "--surplus share"},
      {request.cpu_only, "--nproc-per-node cpu"}};
  return lookup(flags, true, "");
}

// Some flags say something of a rank's one GPU, and have no meaning with several.
void check_gpus_per_rank(const Request& request) {
  if (request.gpus_per_rank < 1)
    refuse("--gpus-per-rank: expected at least 1 GPU, got ", request.gpus_per_rank);
  const auto beside = flag_of_one_gpu_each(request);
  if (request.gpus_per_rank == 1 || beside.empty())
    return;
  refuse("--gpus-per-rank: expected no ",
         beside,
         " beside it, got ",
         request.gpus_per_rank,
         "; leave one of them out");
}

bool tells_number_of_ranks(const Request& request) {
  const auto has_number = [](const HostRequest& host) {
    return host.nproc.has_value();
  };
  return request.nproc_per_node || any_of(request.hosts, has_number);
}

// Without a number of ranks there are those of the mesh, the same on every host. An axis that takes
// the remaining ranks needs the number from elsewhere.
void set_ranks_of_mesh(const Inventory& inventory, Request& request) {
  const bool takes_the_rest =
      any_of(request.mesh, [](const MeshAxis& axis) { return axis.size == -1; });
  if (takes_the_rest || tells_number_of_ranks(request))
    return;
  const int num_ranks = checked_mesh(request.mesh, 0).num_ranks();
  const int hosts = request.hosts.empty() ? int_size(inventory.hosts) : int_size(request.hosts);
  if (num_ranks % hosts != 0) {
    refuse("--mesh: expected ranks that ",
           hosts,
           " hosts can divide evenly, got ",
           num_ranks,
           "; say how many each has: --hosts a:4,b:2");
  }
  request.nproc_per_node = num_ranks / hosts;
}

// How many ranks each host gets, if that is the same number and can be told before any policy.
std::optional<int64_t> ranks_of_each_host(const Inventory& inventory, const Request& request) {
  if (request.nproc_per_node)
    return *request.nproc_per_node;
  const int64_t gpus = std::ssize(inventory.hosts.front().gpus);
  const bool all_alike =
      all_of(inventory.hosts, [&](const Host& h) { return std::ssize(h.gpus) == gpus; });
  const bool has_one_gpu_each = request.gpus.is_all() && request.gpus_per_rank == 1;
  if (all_alike && has_one_gpu_each && !request.cpu_only)
    return gpus;
  return std::nullopt;
}

// All hosts of the inventory: as it lists them, or as the network has them.
JobHosts all_hosts(const Inventory& inventory, const Request& request) {
  const auto names = mapped(inventory.hosts, &Host::name);
  const auto blocks =
      blocks_of_mesh(request.mesh, ranks_of_each_host(inventory, request), std::ssize(names));
  return mapped(network_order(request.switches, names, blocks), [&](size_t at) {
    return JobHost{&inventory.hosts[at], request.nproc_per_node, request.masks};
  });
}

// A size without a unit is one in bytes, which nobody means who asks for 40 of a GPU's.
void check_rank_memory_has_units(const Request& request) {
  constexpr uint64_t kLeast = uint64_t{1} << 20;
  for (const uint64_t bytes : request.rank_memory_bytes) {
    if (bytes > 0 && bytes < kLeast)
      refuse("--rank-memory: expected at least 1 MiB, or 0 for a rank that needs none, got ",
             bytes,
             " B; write the unit, as in 40GiB");
  }
}

}  // namespace

// The order matters: the policy is filled in before anything is said of it.
Request checked_request(const Inventory& inventory, Request request) {
  if (inventory.hosts.empty())
    refuse("plan: expected at least one host, got none (", inventory.source, ")");
  if (request.nproc_per_node && *request.nproc_per_node < 1) {
    refuse("--nproc-per-node: expected at least 1 rank, got ", *request.nproc_per_node);
  }
  if (request.global_batch < 0) {
    refuse("--global-batch: expected a number of samples, got ", request.global_batch);
  }
  check_gpus_per_rank(request);
  check_scores(request.scores);
  if (!request.mesh.empty())
    set_ranks_of_mesh(inventory, request);
  if (request.policy.empty())
    request.policy = default_policy(request);
  check_policy(request);
  check_scores_are_used(request);
  check_rank_memory_has_units(request);
  const auto flag = flag_that_needs_gpus(request);
  if (request.cpu_only && !flag.empty()) {
    refuse("plan: expected either CPU slots or GPUs, got both (", flag, "); leave one out");
  }
  return request;
}

// Large fleets are searched by name through a map, since jobs may name every host of them.
JobHosts hosts_of_job(const Inventory& inventory, const Request& request) {
  if (request.hosts.empty())
    return all_hosts(inventory, request);
  JobHosts hosts;
  std::unordered_map<std::string_view, const Host*> by_name;
  for (const Host& host : inventory.hosts)
    by_name.emplace(host.name, &host);
  std::unordered_set<std::string_view> seen;
  for (const HostRequest& wanted : request.hosts) {
    const Host* const host = find_or(by_name, wanted.name);
    if (host == nullptr) {
      refuse("--hosts: expected hosts of ",
             inventory.source,
             " (",
             names_of(inventory),
             "), got '",
             wanted.name,
             "'");
    }
    if (!seen.insert(wanted.name).second)
      refuse("--hosts: expected each host once, got '", wanted.name, "' again");
    if (wanted.nproc && *wanted.nproc < 1) {
      refuse("--hosts: expected at least 1 rank, got ",
             *wanted.nproc,
             " (host ",
             wanted.name,
             "); leave the host out instead");
    }
    hosts.push_back({host,
                     wanted.nproc ? wanted.nproc : request.nproc_per_node,
                     wanted.masks.value_or(request.masks)});
  }
  return hosts;
}

// The policies that are left out here can place ranks on CPU slots as well.
std::string flag_that_needs_gpus(const Request& request) {
  const bool takes_cpus = is_one_of(request.policy, "sequential", "mesh");
  const std::pair<bool, std::string> flags[] = {
      {request.gpu_only, "--nproc-per-node gpu"},
      {!request.gpus.is_all(), cat("--gpus ", request.gpus.text)},
      {request.gpus_per_rank > 1, cat("--gpus-per-rank ", request.gpus_per_rank)},
      {request.choose != nullptr, "Request::choose"},
      {!request.map.empty(), "--map"},
      {request.map_of != nullptr, "--map-command"},
      {!request.rank_memory_bytes.empty(), "--rank-memory"},
      {!takes_cpus, cat("--policy ", request.policy)},
      {request.numa_binding != NumaBinding::none,
       cat("--numa-binding ", to_string(request.numa_binding))}};
  return lookup(flags, true, "");
}

}  // namespace muster
