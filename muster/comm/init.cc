// Ranks meet in a store, tell each other who they are, agree on a backend, and make the group over
// it. Where only some take part, the process that serves the store waits until these have left.
#include "muster/comm/init.h"

#include <torch/version.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/host_identity.h"
#include "muster/base/late_ranks.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/rank_processes.h"
#include "muster/comm/capabilities.h"
#include "muster/comm/group_state.h"
#include "muster/comm/init_after_rendezvous.h"
#include "muster/comm/job_ranks.h"
#include "muster/comm/nccl/nccl.h"
#include "muster/comm/rendezvous/members.h"
#include "muster/comm/rendezvous/rendezvous.h"
#include "muster/shm/peer_watch.h"
#include "muster/store/rank_identity.h"
#include "muster/trace/activity.h"
#include "muster/trace/late_rank.h"

namespace muster {

namespace {

// After one rank's failure the others may use the store for so long.
constexpr std::chrono::seconds kLastWords{30};

// The backend that the user asks for. MUSTER_BACKEND comes first, unless it is "auto".
std::string backend_asked(const InitOptions& options) {
  const std::string told = get_env("MUSTER_BACKEND").value_or("auto");
  std::string asked = told == "auto" ? options.backend : told;
  const auto known = known_backends();
  if (asked != "auto" && !contains(known, asked)) {
    throw invalid_argument(told == "auto" ? "backend" : "MUSTER_BACKEND",
                           ": expected auto, ",
                           join(known, ", "),
                           ", got '",
                           asked,
                           "'; correct it");
  }
  return asked;
}

// This process's identity. A GPU is made current here, before anything else uses it.
RankIdentity identity(const Rendezvous& rendezvous,
                      const InitOptions& options,
                      bool takes_part = true) {
  const auto asked = backend_asked(options);
  std::string device = options.device.str();
  if (options.device.is_cuda()) {
    device = use_cuda_device(options.device);
  } else if (asked == "nccl" && takes_part) {
    throw invalid_argument("backend: expected a CUDA device for nccl, got ",
                           options.device.str(),
                           " (rank ",
                           rendezvous.rank,
                           "); use shm, gloo or auto");
  }
  return {.rank = rendezvous.rank,
          .world_size = rendezvous.world_size,
          .host = host_identity(),
          .pid = ::getpid(),
          .pid_namespace = shm::own_pid_namespace(),
          .device = device,
          .pci_address = options.device.is_cuda() ? pci_address(options.device) : "",
          .backend = asked,
          .libtorch = TORCH_VERSION,
          .nccl = options.device.is_cuda() ? nccl_version() : "",
          .takes_part = takes_part};
}

// Errors of this process name the others that have ended, where it can see them.
void remember_processes(const RankIdentities& members, const RankIdentity& self) {
  std::vector<RankProcess> others;
  for (const RankIdentity& member : members) {
    const bool seen = member.host == self.host && member.pid_namespace == self.pid_namespace;
    if (seen && member.pid != self.pid)
      others.push_back({.rank = member.rank, .pid = member.pid});
  }
  remember_rank_processes(others);
}

// Tells of the backend in the log of the group's first rank. Other groups of the process are like
// its first.
void log_backend(const std::string& backend, const InitOptions& options, size_t ranks) {
  static std::atomic<bool> told = false;
  if (options.device.is_cuda() && !capabilities_of(backend).on_gpus) {
    log_info("process group: ",
             backend,
             ", CUDA tensors staged through host memory (a rank without a GPU of its own)");
  } else if (!told.exchange(true)) {
    log_info("process group: ", plural(ranks, "rank"), " over ", backend);
  }
}

// The group of `members`, this process being the one at `place`.
ProcessGroup make_group(const Rendezvous& rendezvous,
                        const StorePtr& root,
                        const RankIdentities& members,
                        int place,
                        const InitOptions& options,
                        bool awaited = false) {
  const auto backend = choose_backend(members, backend_asked(options));
  open_own_activity();
  describe_late_ranks(/*names_are_the_jobs=*/true);
  set_warning([](const std::string& text) { log_warning(text); }, "MUSTER_COLLECTIVE_TIMEOUT");
  if (place == 0)
    log_backend(backend, options, members.size());
  remember_processes(members, members[place]);
  Strings hosts = mapped(members, &RankIdentity::host);
  return make_process_group(root,
                            place,
                            static_cast<int>(std::ssize(members)),
                            {.backend = backend,
                             .hosts = std::move(hosts),
                             .device = options.device,
                             .timeout = collective_timeout(options.timeout),
                             .master_addr = rendezvous.master_addr,
                             .connect_timeout = options.init_timeout,
                             .nccl = options.nccl,
                             .awaited = awaited,
                             .of_all_ranks = std::ssize(members) == rendezvous.world_size});
}

// Waits until `count` has been added to the key; false when the deadline has come first.
bool wait_for_count(c10d::Store& store, const char* key, int64_t count, const Deadline& deadline) {
  while (store.add(key, 0) < count) {
    if (deadline.passed())
      return false;
    std::this_thread::sleep_for(milliseconds(20));
  }
  return true;
}

// Waits until the ranks of the group have left it, well or not: they need the store that this
// process serves. Where one fails, the others get kLastWords to say so too; one that was killed
// never does.
void serve_until_left(c10d::Store& root, int64_t size) {
  const auto left = [&] {
    return root.add(kDepartures, 0) + root.add(kAbandoned, 0);
  };
  while (left() < size) {
    if (root.add(kAbandoned, 0) > 0) {
      wait_for_count(root, kAbandoned, size, Deadline(kLastWords));
      return;
    }
    std::this_thread::sleep_for(milliseconds(100));
  }
}

}  // namespace

// A user's variable comes before the program's own limit.
milliseconds collective_timeout(milliseconds given) {
  const auto told = get_env("MUSTER_COLLECTIVE_TIMEOUT");
  if (!told)
    return given;
  const auto timeout = parse_duration(*told, "MUSTER_COLLECTIVE_TIMEOUT");
  if (timeout <= milliseconds(0))
    throw invalid_argument(
        "MUSTER_COLLECTIVE_TIMEOUT: expected a time above 0, got '", *told, "'; correct it");
  return timeout;
}

// The members' keys have a number of their own for each group that was made over the store before.
ProcessGroup init_process_group(const Rendezvous& rendezvous, const InitOptions& options) {
  const RankIdentity self = identity(rendezvous, options);
  const auto world = store_part(rendezvous.store, "world");
  const int64_t generation = next_generation(*world, rendezvous.world_size);
  c10d::PrefixStore members_of(cat("members/", generation), rendezvous.store);
  const auto members = join(members_of, self, options.init_timeout);
  return make_group(rendezvous, world, members, rendezvous.rank, options);
}

ProcessGroup init_process_group(const InitOptions& options) {
  ProcessGroup group = init_process_group(open_rendezvous(options), options);
  set_job_ranks(group.size());
  return group;
}

std::optional<ProcessGroup> init_process_group_of_some(const InitOptions& options,
                                                       bool takes_part) {
  return init_process_group_of_some(open_rendezvous(options), options, takes_part);
}

// Every process joins, and those that take part are renumbered. A process that does not take part
// has no group, but may have to serve the store of those that do.
std::optional<ProcessGroup> init_process_group_of_some(const Rendezvous& rendezvous,
                                                       const InitOptions& options,
                                                       bool takes_part) {
  const RankIdentity self = identity(rendezvous, options, takes_part);
  c10d::PrefixStore members_of("some/members", rendezvous.store);
  auto members = join(members_of, self, options.init_timeout);
  const bool any = any_of(members, &RankIdentity::takes_part);
  if (any)
    std::erase_if(members, std::not_fn(&RankIdentity::takes_part));
  const auto root = store_part(rendezvous.store, "some");
  // The process that serves the store may not end before all have read who takes part.
  root->add("joined", 1);
  if (rendezvous.serves_store)
    wait_for_count(*root, "joined", rendezvous.world_size, Deadline(options.init_timeout));
  if (any && !takes_part) {
    if (rendezvous.serves_store)
      serve_until_left(*root, std::ssize(members));
    return std::nullopt;
  }
  const auto before = [&](const RankIdentity& member) {
    return member.rank < rendezvous.rank;
  };
  const auto place = static_cast<int>(std::ranges::count_if(members, before));
  const bool awaited = std::ssize(members) < rendezvous.world_size;
  try {
    return make_group(rendezvous, root, members, place, options, awaited);
  } catch (...) {
    if (awaited)
      root->add(kAbandoned, 1);
    throw;
  }
}

ProcessGroup init_process_group(const StorePtr& store,
                                int rank,
                                int world_size,
                                const InitOptions& options) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw invalid_argument(
        "init_process_group: expected 0 <= rank < world_size, got rank ", rank, " of ", world_size);
  }
  const Rendezvous rendezvous{
      .store = store, .rank = rank, .world_size = world_size, .master_addr = ""};
  return init_process_group(rendezvous, options);
}

}  // namespace muster
