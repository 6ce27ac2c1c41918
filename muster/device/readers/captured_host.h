// What the readers of captured machines share: limits, names, addresses, UUIDs for GPUs whose file
// gives none, and the check that a host makes sense. For the readers beside this file and for
// inventory_json.cc; knows no format.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "muster/device/inventory.h"

namespace muster {

inline constexpr size_t kMaxInventoryBytes = size_t{64} << 20;
inline constexpr size_t kMaxHostDevices = 1024;  // GPUs, and NICs: their links are a square of them
inline constexpr size_t kMaxHostCores = 65536;

// The file's name without folder and ending, for a host whose file does not name it. Blanks and
// what
// `--gpus` uses between names become '-'.
std::string host_name_of(const std::string& path);

// Trimmed, at most 200 bytes, and '?' for what is not printable ASCII.
std::string clean_text(std::string_view text);

// Throws: invalid_argument, "inventory FILE: expected RULE, got VALUE (line 3, column 5)".
[[noreturn]] void refuse_inventory(const std::string& source,
                                   const std::string& expected,
                                   std::string_view got,
                                   size_t line,
                                   size_t column);

// "00000000:3B:00.0", "0000:3b:00.0" or "3b:00.0" as Linux writes it; nothing for other texts.
std::optional<PciAddress> parse_pci_address(std::string_view text);

// A UUID for a GPU whose file gives none, the same for the same seed.
GpuUuid invented_uuid(std::string_view seed);

// Gives every healthy GPU that has no UUID one made from the host's name and the GPU's index.
void invent_uuids(Host& host);

// A value that two GPUs share and must not: they would be taken for one.
struct Repeated {
  const char* what;  // "index", "UUID", "PCI address"
  std::string value;
};
std::optional<Repeated> first_repeated(const Gpus& gpus);

// The last step of every reader of one host: invents the UUIDs that healthy GPUs lack, and says why
// there are no GPUs. `what` names the file in errors. Throws: invalid_argument when two GPUs share
// an index, a UUID or a PCI address, or there are too many.
void complete_host(Host& host, const std::string& what);

}  // namespace muster
