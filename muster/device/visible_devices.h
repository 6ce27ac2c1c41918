// What CUDA makes of CUDA_VISIBLE_DEVICES: which GPUs a process would see, in which order. Pure functions
// over values; called by placement (an inherited variable is an outer mask).
//
// Source: CUDA Programming Guide, "CUDA Environment Variables": a comma-separated list of indices or of
// "GPU-<uuid>" (any unique prefix); the first invalid entry hides itself and all after it; an empty value
// hides everything; MIG instances are "MIG-<uuid>" or "MIG-GPU-<uuid>/<gi>/<ci>". What the guide leaves open
// is as PyTorch's own reader has it, which was checked against driver 525 (pytorch#92315): numbers are read
// like strtol, so " 2", "+2" and "2nd" are 2; the first entry decides whether the list is of indices, GPUs or
// MIG instances, and an entry of another kind is invalid; UUIDs take no blanks; a device named twice hides
// all. An entry that is invalid comes before that last rule: "0,9,0" on two GPUs is GPU 0.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/device/inventory.h"

namespace muster {

struct VisibleEntry {
  enum class Kind { index, gpu_uuid, mig, invalid };
  Kind kind = Kind::invalid;
  int index = -1;    // kind == index
  std::string text;  // as written
  bool operator==(const VisibleEntry&) const = default;
};

// The entries of `text` up to and with the first that is invalid whatever devices there are.
std::vector<VisibleEntry> parse_visible_devices(std::string_view text);

struct VisibleDevices {
  std::vector<size_t> gpus;  // positions in the list given, by CUDA ordinal
  bool by_index = false;     // the list was of indices, not of UUIDs
  std::string remark;        // what was cut and why, in one line; empty when every entry was valid
};

// The GPUs that a process with CUDA_VISIBLE_DEVICES=`text` sees. Indices are taken in PCI order
// (CUDA_DEVICE_ORDER=PCI_BUS_ID), which is how Gpu::index counts.
VisibleDevices visible_devices(const std::vector<Gpu>& gpus, std::string_view text);

}  // namespace muster
