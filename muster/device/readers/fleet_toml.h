// Many hosts from a short TOML file, for planning on machines that are not there. Called by
// read_inventory.h.
//
//   [[host]]
//   name = "a"                # required; with count: a0, a1, …
//   gpus = "8xH100-80GB"      # models of gpu_models.h, joined by commas: "1xRTX4090, 1xRTX3090"
//   nvlink = "all"            # "none" (default), "all" with each other, "pairs" 0-1, 2-3 …, or
//                             # a matrix of counts, [[0, 2], [2, 0]], or of links,
//                             # [["X", "NV2"], ["NV2", "X"]]
//   numa = 2                  # NUMA nodes, the GPUs and cores in equal blocks; default 1
//   nics = 8                  # or ["mlx5_0", "mlx5_1"]; each shares a PCIe switch with its GPUs
//   cores = 96                # physical cores
//   cpu_slots = 4             # CPU ranks where no GPU is used; default 2
//   count = 16                # that many hosts alike
//
//   [[host]]
//   name = "n"
//   from = "captured.xml"     # one host's file of any other kind, by its place beside this file
//   count = 16
//
// Where NVLink does not join two GPUs they are joined by NODE, or SYS across NUMA nodes. UUIDs are
// invented from the host's name; those of a captured file stay with the first host that has them,
// and the others' are made from the name and them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/device/inventory.h"

namespace muster {

// Reads the one host of the file at `path`, as the fleet file writes it. Throws what is wrong with
// it.
using HostLoader = std::function<Host(const std::string& path)>;

// The hosts in order. `source` (the file's name) is named in errors.
// Throws: invalid_argument with line and column, for what is not TOML, unknown keys and models,
// numbers out of range, names that come twice, and fleets too large for a gigabyte (40 000 hosts of
// 8 GPUs still fit).
std::vector<Host> fleet_hosts(const std::string& text,
                              const std::string& source,
                              const HostLoader& load);

}  // namespace muster
