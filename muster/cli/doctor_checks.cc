// The table of all checks, and what they have in common. A check that cannot look at something says
// "skipped", and never "ok".
#include "muster/cli/doctor_checks.h"

#include <algorithm>
#include <array>
#include <utility>

#include "muster/base/folders.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

// The checks in the order in which they are printed.
constexpr std::array kChecks = {
    Check{"driver", check_driver},
    Check{"GPU health", check_gpu_health},
    Check{"GPUs in use", check_gpu_busy},
    Check{"MIG", check_mig},
    Check{"peer access", check_peer_access},
    Check{"CUDA_DEVICE_ORDER", check_device_order},
    Check{"CUDA_VISIBLE_DEVICES", check_visible_devices},
    Check{"host name", check_host_name},
    Check{"route to the master", check_master_route},
    Check{"network interface", check_interface_variables},
    Check{"ports", check_ports},
    Check{"/dev/shm", check_shared_memory},
    Check{"open files", check_open_files},
    Check{"locked memory", check_locked_memory},
    Check{"processes", check_processes},
    Check{"cgroup", check_cgroup},
    Check{"orphans", check_orphans},
    Check{"leases", check_leases},
    Check{"torch", check_torch},
};

}  // namespace

// The names are in the order of the enumeration.
const char* to_string(CheckStatus status) {
  constexpr const char* kNames[] = {"ok", "warn", "fail", "skipped"};
  return kNames[status];
}

std::span<const Check> doctor_checks() {
  return kChecks;
}

Strings names_in(const std::string& folder) {
  auto names = mapped(paths_in(folder), file_name);
  std::ranges::sort(names);
  return names;
}

// An empty variable counts as unset, as most programs read it.
std::optional<std::string> variable(const DoctorFacts& facts, const char* name) {
  auto value = find_or(facts.environment, name);
  return value.empty() ? std::nullopt : std::optional(std::move(value));
}

}  // namespace muster
