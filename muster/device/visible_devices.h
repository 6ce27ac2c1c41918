// What CUDA makes of CUDA_VISIBLE_DEVICES, and ROCm of its variables: which GPUs a process would
// see, in which order. Pure functions over values, but for inherited_masks; called by placement (an
// inherited variable is an outer mask).
//
// Source: CUDA Programming Guide, "CUDA Environment Variables": a comma-separated list of indices
// or of "GPU-<uuid>" (any unique prefix); the first invalid entry hides itself and all after it; an
// empty value hides everything; MIG instances are "MIG-<uuid>" or "MIG-GPU-<uuid>/<gi>/<ci>". What
// the guide leaves open is as PyTorch's own reader has it, which was checked against driver 525
// (pytorch#92315): numbers are read like strtol, so " 2", "+2" and "2nd" are 2; the first entry
// decides whether the list is of indices, GPUs or MIG instances, and an entry of another kind is
// invalid; UUIDs take no blanks; a device named twice hides all. An entry that is invalid comes
// before that last rule: "0,9,0" on two GPUs is GPU 0. MIG instances are matched by the names that
// NVML gives them (the second form is that of drivers before 470).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/lists.h"
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

struct VisibleMig {
  size_t gpu = 0;       // position in the list given
  size_t instance = 0;  // position in Gpu::mig
  bool operator==(const VisibleMig&) const = default;
};

struct VisibleDevices {
  Indices gpus;                 // positions in the list given, by CUDA ordinal
  std::vector<VisibleMig> mig;  // a list of MIG instances: these, and no GPU as a whole
  bool by_index = false;        // the list was of indices, not of UUIDs
  // What was cut and why, or what was read in another way than it is written, in one line; empty
  // when every entry was valid.
  std::string remark;
};

// The GPUs or MIG instances that CUDA_VISIBLE_DEVICES=`text` shows. Of several MIG instances CUDA
// gives a process the first only; all are listed, because a launcher can give each rank one.
// Indices are taken in PCI order (CUDA_DEVICE_ORDER=PCI_BUS_ID), which is how Gpu::index counts;
// GPUs of other vendors are passed over.
VisibleDevices visible_devices(const Gpus& gpus, std::string_view text);

// What an environment hides of its machine's GPUs. Nothing: the variable is not set; empty is
// another thing.
struct VisibilityMasks {
  std::optional<std::string> cuda =
      {};  // CUDA_VISIBLE_DEVICES; HIP reads it where its own is unset or empty
  std::optional<std::string> rocr{};  // ROCR_VISIBLE_DEVICES
  std::optional<std::string> hip{};   // HIP_VISIBLE_DEVICES
  bool operator==(const VisibilityMasks&) const = default;
};

// This process's.
VisibilityMasks inherited_masks();

// The variable that HIP reads, and its value: its own or, where that is unset or empty, CUDA's.
struct HipMask {
  const char* variable;
  std::optional<std::string> value;
};
HipMask hip_mask(const VisibilityMasks& masks);

// The AMD GPUs of the list that a HIP process with these variables sees, in its order.
//
// Two masks, one after the other. ROCr's: numbers as in C (hexadecimal too) or "GPU-<unique
// prefix>", in any case; an invalid entry or one named before hides itself and all after it; empty
// hides everything; numbers count AMD's GPUs of the list. HIP's: plain decimal numbers, or "GPU-"
// and any part of a UUID, of what ROCr shows; an invalid entry hides itself and all after it, one
// named before is passed over; empty is as unset. Source: ROCm documentation, "GPU isolation
// techniques"; what it leaves open is as ROCr's device filter and CLR's device list do it (ROCm 6).
VisibleDevices visible_rocm_devices(const Gpus& gpus, const VisibilityMasks& masks);

}  // namespace muster
