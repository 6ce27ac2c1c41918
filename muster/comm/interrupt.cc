// Gloo has no way to end what is under way, but fails it when a connection closes. So the
// connections that a group makes are found by looking at the process's sockets before and after,
// and an interruption shuts them down. Backends over shared memory are aborted, and so is NCCL,
// whose operations then end without a result.
#include "muster/comm/interrupt.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/blocked_signals.h"
#include "muster/base/folders.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/comm/nccl/gpu_graph.h"

namespace muster {

namespace {

// Connections of this process: each has its descriptor, and the kernel's own number, which tells it
// from another that has the descriptor later.
using Connections = std::set<std::pair<int, ino_t>>;

// Returns the kernel's number of a socket; nothing for other descriptors.
std::optional<ino_t> socket_number(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode))
    return std::nullopt;
  return info.st_ino;
}

bool is_tcp_connection(int fd) {
  int type = 0;
  socklen_t size = sizeof(type);
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM)
    return false;
  sockaddr_storage peer{};
  size = sizeof(peer);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0)
    return false;
  return peer.ss_family == AF_INET || peer.ss_family == AF_INET6;
}

Connections own_connections() {
  Connections found;
  for (const auto& path : paths_in("/proc/self/fd")) {
    const int fd = std::atoi(path.filename().c_str());
    const auto number = socket_number(fd);
    if (number && is_tcp_connection(fd))
      found.emplace(fd, *number);
  }
  return found;
}

// Both ends see that a connection is shut down, and Gloo fails all that waits for it. The
// descriptor stays Gloo's.
void shut_down(const Connections& connections) {
  for (const auto& [fd, number] : connections) {
    if (socket_number(fd) == number)
      ::shutdown(fd, SHUT_RDWR);
  }
}

struct Tracked {
  c10::weak_intrusive_ptr<c10d::Backend> backend;
  Connections connections;
};

struct Registry {
  std::mutex mutex;
  bool is_on = false;
  int generation = 0;
  std::atomic<int64_t> interruptions = 0;
  std::vector<Tracked> groups;
};

Registry& tracked_groups() {
  // It is never destroyed: threads may outlive main().
  static auto& registry = *new Registry;
  return registry;
}

void abort_backend(const BackendPtr& backend) {
  try {
    backend->abort();
  } catch (const std::exception& error) {
    log_warning("a group was not aborted: ", error.what());
  }
}

// An abort of NCCL's waits for all that the GPU is at, also for what hangs in other communicators.
// So all of them are aborted at a time. Gloo's own abort does nothing.
std::vector<BackendPtr> interrupt_now(const std::vector<Tracked>& groups) {
  std::vector<BackendPtr> held;
  const BlockedSignals blocked;  // in the threads, for good
  std::vector<std::jthread> aborting;
  for (const Tracked& tracked : groups) {
    const BackendPtr backend = tracked.backend.lock();
    if (!backend)
      continue;
    held.push_back(backend);
    shut_down(tracked.connections);
    if (backend->getBackendName() == "nccl")
      aborting.emplace_back(abort_backend, backend);
    else if (backend->getBackendName() != "gloo")
      abort_backend(backend);
  }
  return held;
}

// Returns the backends, of which these may be the last references: they must not end under the
// lock.
std::vector<BackendPtr> interrupt(const std::vector<Tracked>& groups) {
  std::vector<BackendPtr> held;
  end_communicator([&] { held = interrupt_now(groups); });
  return held;
}

}  // namespace

void track_groups(int generation) {
  Registry& registry = tracked_groups();
  const Lock lock(registry.mutex);
  registry.is_on = true;
  registry.generation = generation;
}

void interrupt_groups() {
  std::vector<BackendPtr> held;  // longer than the lock
  Registry& registry = tracked_groups();
  const Lock lock(registry.mutex);
  ++registry.interruptions;
  held = interrupt(std::exchange(registry.groups, {}));
}

bool groups_are_tracked() {
  Registry& registry = tracked_groups();
  const Lock lock(registry.mutex);
  return registry.is_on;
}

int64_t num_interruptions() {
  return tracked_groups().interruptions;
}

std::string group_name_suffix() {
  Registry& registry = tracked_groups();
  const Lock lock(registry.mutex);
  return registry.generation == 0 ? "" : cat(" of generation ", registry.generation);
}

struct GroupTrack::Before {
  Connections connections;
  int64_t interruptions = 0;
};

GroupTrack::GroupTrack() {
  Registry& registry = tracked_groups();
  const Lock lock(registry.mutex);
  if (!registry.is_on)
    return;
  before_ = std::make_unique<Before>(
      Before{.connections = own_connections(), .interruptions = registry.interruptions});
}

GroupTrack::~GroupTrack() = default;

// The backend's connections are those that were not there before.
void GroupTrack::add(const BackendPtr& backend) {
  if (!before_)
    return;
  Tracked tracked{.backend = c10::weak_intrusive_ptr<c10d::Backend>(backend),
                  .connections = own_connections()};
  std::erase_if(tracked.connections,
                [&](const auto& connection) { return before_->connections.contains(connection); });
  Registry& registry = tracked_groups();
  const Lock lock(registry.mutex);
  std::erase_if(registry.groups, [](const Tracked& other) { return other.backend.expired(); });
  if (registry.interruptions != before_->interruptions) {
    interrupt({tracked});  // the caller holds it
  } else {
    registry.groups.push_back(std::move(tracked));
  }
}

}  // namespace muster
