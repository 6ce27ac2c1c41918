// A machine as a picture (SVG): sockets, NUMA nodes with their cores, PCIe switches, GPUs, NICs,
// the links between GPUs, and with a plan the ranks on their GPUs. For `muster devices --svg` and
// `muster plan --svg`. Text only, the same for the same values; no I/O.
#pragma once

#include <string>

#include "muster/device/inventory.h"
#include "muster/placement/plan.h"

namespace muster {

struct SvgOptions {
  int max_hosts = 32;  // of more, the first ones are drawn and the rest counted
};

// A whole SVG document: the inventory's hosts one below the other. It needs no script, font or
// other file. `plan`, which may be null, belongs to this inventory: its ranks are drawn on the
// hosts that it names; hosts without ranks are then left out, unless none has any.
std::string draw_svg(const Inventory& inventory,
                     const Plan* plan = nullptr,
                     const SvgOptions& options = {});

// The same for one host.
std::string draw_svg(const Host& host, const Plan* plan = nullptr);

// Whether the host has the device of a rank: the GPU, or its instance. CPU slots it always has.
bool has_device(const Host& host, const DeviceAssignment& device);

}  // namespace muster
