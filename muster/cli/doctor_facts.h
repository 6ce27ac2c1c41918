// The facts that `muster doctor` judges: calls ask the machine for them, once. The checks
// themselves read the files of /proc and /sys, below `root`. doctor_facts.cc fills the facts in, or
// a test does.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/device/inventory.h"
#include "muster/launch/lease.h"

namespace muster {

struct DoctorOptions {
  std::string master{};  // the host that ranks are to meet on; empty: MASTER_ADDR
  std::string python =
      {};  // a Python that is asked for its torch; empty: only files are looked for
};

struct DoctorFacts {
  std::string root{};  // the folder that holds proc/, sys/ and dev/; empty: this machine's
  uid_t user = 0;
  Environment environment{};

  Host host{};  // with links and full detail
  std::string probe_error{};

  Strings host_addresses{};  // that host.name resolves to
  std::string resolve_error{};

  std::string master{};            // empty: none is known
  std::string master_address{};    // of ours, that traffic to it leaves from
  std::string master_interface{};  // which has that address
  std::string master_error{};

  std::optional<uint64_t> shm_total_bytes{};  // nothing: no /dev/shm
  uint64_t shm_free_bytes = 0;
  bool shm_writable = false;

  std::string port_error{};          // why no port of loopback can be bound; empty when one can
  std::string master_port_holder{};  // who listens on MASTER_PORT, where that is set

  std::string lease_folder{};
  std::string lease_error{};
  std::map<GpuUuid, LeaseHolders> leases{};

  std::string asked_python{};   // --python
  std::string python_answer{};  // "2.15.0+cu130 /…/torch", or empty
  std::string python_error{};
};

// Blocking: for name resolution and the driver; with `python`, for importing torch (a minute at
// most).
DoctorFacts look_at_this_machine(const DoctorOptions& options);

}  // namespace muster
