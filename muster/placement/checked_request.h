// What can be found wrong with a request before a single device is looked at. A private header of
// the planner.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/placement/request.h"

namespace muster {

// The request with its policy filled in.
// Throws: invalid_argument when it contradicts itself or has a value that no machine could serve.
Request checked_request(const Inventory& inventory, Request request);

// A host of the job, and how many ranks were asked for there.
struct JobHost {
  const Host* host = nullptr;
  std::optional<int> nproc{};
  VisibilityMasks masks{};
};
using JobHosts = std::vector<JobHost>;

// The inventory's hosts that `request.hosts` names, in that order. When it names none, all of them,
// in the order of the network (network_order.h).
// Throws: invalid_argument when a name is unknown or comes twice.
JobHosts hosts_of_job(const Inventory& inventory, const Request& request);

// The flag that asks for GPUs, for errors; empty when nothing does and CPU slots will do.
std::string flag_that_needs_gpus(const Request& request);

}  // namespace muster
