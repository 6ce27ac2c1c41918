// Files come from anywhere, so nothing of them is taken as it stands. Names lose what a terminal or
// `--gpus` would stumble over, and each GPU must differ from all others of its host.
#include "muster/device/readers/captured_host.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fnv.h"
#include "muster/base/hex.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/zero_padded.h"

namespace muster {
namespace {

constexpr size_t kMaxTextBytes = 200;
constexpr size_t kMaxHostNameBytes = 64;

bool is_printable_ascii(char c) {
  return c >= 0x20 && c < 0x7f;
}

bool is_hex(std::string_view text) {
  return all_of(text, [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// A PCI domain with the zeros before it that make it four digits, or with none.
std::string four_digits_at_least(std::string domain) {
  domain.erase(0, domain.find_first_not_of('0'));
  return zero_padded(domain, 4);
}

// Whether the text is like "00.0": a device's two digits and one of its eight functions.
bool is_device_and_function(std::string_view text) {
  if (text.size() != 4 || text[2] != '.')
    return false;
  return is_hex(text.substr(0, 2)) && text[3] >= '0' && text[3] <= '7';
}

// FNV-1a, then mixed as splitmix64 does, so that near seeds give far values. Source: S. Vigna.
uint64_t hash(std::string_view text, uint64_t start) {
  uint64_t value = fnv1a(text, kFnvStart ^ start);
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

void check_count(const std::string& what, const char* things, size_t count, size_t most) {
  if (count <= most)
    return;
  throw invalid_argument(what, ": expected at most ", most, " ", things, " on a host, got ", count);
}

}  // namespace

std::string host_name_of(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  const size_t dot = name.find_last_of('.');
  if (dot != npos && dot > 0)
    name.resize(dot);
  name.resize(std::min(name.size(), kMaxHostNameBytes));
  const auto may_stand = [](char c) {
    return is_printable_ascii(c) && !contains(std::string_view(" :;,!"), c);
  };
  std::ranges::replace_if(name, std::not_fn(may_stand), '-');
  return text_or(name, "host");
}

std::string clean_text(std::string_view text) {
  std::string out(trim(text).substr(0, kMaxTextBytes));
  std::ranges::replace_if(out, std::not_fn(is_printable_ascii), '?');
  return out;
}

void refuse_inventory(const std::string& source,
                      const std::string& expected,
                      std::string_view got,
                      size_t line,
                      size_t column) {
  throw invalid_argument("inventory ",
                         source,
                         ": expected ",
                         expected,
                         ", got ",
                         clean_text(got),
                         " (line ",
                         line,
                         ", column ",
                         column,
                         ")");
}

// The domain may be missing, as lspci leaves it out, or have more digits than it needs.
std::optional<PciAddress> parse_pci_address(std::string_view text) {
  Strings parts = split(trim(text), ':');
  if (parts.size() == 2)
    parts.insert(parts.begin(), "0000");
  if (parts.size() != 3)
    return std::nullopt;
  const std::string& domain = parts[0];
  const std::string& bus = parts[1];
  if (domain.empty() || domain.size() > 8 || bus.size() != 2 || !is_hex(domain + bus))
    return std::nullopt;
  if (!is_device_and_function(parts[2]))
    return std::nullopt;
  parts[0] = four_digits_at_least(domain);
  return PciAddress{lower_case(join(parts, ":"))};
}

// A UUID made from the same seed is the same on every machine, so plans can be compared.
GpuUuid invented_uuid(std::string_view seed) {
  const uint64_t high = hash(seed, 0);
  const uint64_t low = hash(seed, 0x9e3779b97f4a7c15U);
  // Version 8 (RFC 9562): bits that their maker chose.
  return {cat("GPU-",
              to_hex(high >> 32U, 8),
              "-",
              to_hex(high >> 16U, 4),
              "-8",
              to_hex(high, 3),
              "-a",
              to_hex(low >> 48U, 3),
              "-",
              to_hex(low, 12))};
}

void invent_uuids(Host& host) {
  for (Gpu& gpu : host.gpus) {
    if (gpu.uuid.value.empty() && gpu.health == kHealthy)
      gpu.uuid = invented_uuid(cat(host.name, "/", gpu.index.value));
  }
}

std::optional<Repeated> first_repeated(const Gpus& gpus) {
  StringSet seen;
  std::optional<Repeated> found;
  const auto look = [&](const char* what, const std::string& value) {
    if (!found && !value.empty() && !seen.insert(cat(what, " ", value)).second)
      found = {what, value};
  };
  for (const Gpu& gpu : gpus) {
    look("index", cat(gpu.index.value));
    look("UUID", gpu.uuid.value);
    look("PCI address", gpu.pci.value);
    for (const MigInstance& instance : gpu.mig)
      look("UUID", instance.uuid.value);
  }
  return found;
}

// Bounds come first, because everything after them takes time by the number of devices.
void complete_host(Host& host, const std::string& what) {
  check_count(what, "GPUs", host.gpus.size(), kMaxHostDevices);
  check_count(what, "NICs", host.nics.size(), kMaxHostDevices);
  check_count(what, "cores", host.cores.size(), kMaxHostCores);
  invent_uuids(host);
  if (const auto repeated = first_repeated(host.gpus)) {
    throw invalid_argument(what,
                           ": expected each GPU ",
                           repeated->what,
                           " once, got ",
                           clean_text(repeated->value),
                           " twice");
  }
  if (host.gpus.empty() && host.gpu_note.empty())
    host.gpu_note = "the inventory lists none";
}

}  // namespace muster
