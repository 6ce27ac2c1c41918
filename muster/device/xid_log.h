// Errors of GPUs that NVIDIA's driver has written into the kernel's log ("NVRM: Xid"): what NVML
// does not tell, or no longer can.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/device/inventory.h"

namespace muster {

struct XidError {
  PciAddress pci{};             // "0000:3b:00.0"
  int number = 0;               // 79
  std::string text{};           // "GPU has fallen off the bus."; printable
  int64_t at_microseconds = 0;  // of the kernel's clock
  bool operator==(const XidError&) const = default;
};

// Those numbers by which the GPU itself, its memory or its link is bad, whatever the program did:
// 48, 64, 74, 79, 92, 95, 119, 120, 140. Source: NVIDIA's "XID Errors".
bool is_of_hardware(const XidError& error);

// Of one record, as /dev/kmsg has them: "3,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7,
// …". Others are left out.
std::vector<XidError> xid_errors_in(std::string_view records);

// All that the log holds and that came since then. Nothing where the log cannot be read: few may.
std::vector<XidError> read_xid_errors(int64_t since_microseconds,
                                      const std::string& path = "/dev/kmsg");

}  // namespace muster
