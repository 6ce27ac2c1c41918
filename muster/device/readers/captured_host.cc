#include "muster/device/readers/captured_host.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr size_t kMaxText = 200;
constexpr size_t kMaxHostName = 64;

bool is_hex(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isxdigit(c) != 0;
  });
}

// FNV-1a, then mixed as splitmix64 does, so that near seeds give far values. Source: G. Fowler, L.
// Noll and P. Vo; S. Vigna.
uint64_t hash(std::string_view text, uint64_t start) {
  uint64_t value = 14695981039346656037U ^ start;
  for (const char c : text)
    value = (value ^ static_cast<unsigned char>(c)) * 1099511628211U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

}  // namespace

std::string host_name_of(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  const size_t dot = name.find_last_of('.');
  if (dot != std::string::npos && dot > 0)
    name.resize(dot);
  name.resize(std::min(name.size(), kMaxHostName));
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7f || std::string_view(":;,!").find(c) != std::string_view::npos)
      c = '-';
  }
  return name.empty() ? "host" : name;
}

std::string clean_text(std::string_view text) {
  std::string out(trim(text).substr(0, kMaxText));
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f)
      c = '?';
  }
  return out;
}

std::optional<PciAddress> parse_pci_address(std::string_view text) {
  text = trim(text);
  if (text.size() > 16)
    return std::nullopt;
  std::vector<std::string> parts = split(text, ':');
  if (parts.size() == 2)
    parts.insert(parts.begin(), "0000");
  if (parts.size() != 3 || parts[2].size() != 4 || parts[2][2] != '.')
    return std::nullopt;
  std::string& domain = parts[0];
  if (!is_hex(domain) || domain.size() > 8 || !is_hex(parts[1]) || parts[1].size() != 2)
    return std::nullopt;
  if (!is_hex(parts[2].substr(0, 2)) || parts[2][3] < '0' || parts[2][3] > '7')
    return std::nullopt;
  while (domain.size() > 4 && domain.front() == '0')
    domain.erase(0, 1);
  while (domain.size() < 4)
    domain.insert(0, 1, '0');
  return PciAddress{lower_case(join(parts, ":"))};
}

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

std::optional<Repeated> first_repeated(const std::vector<Gpu>& gpus) {
  std::set<std::string> seen;
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

void complete_host(Host& host, const std::string& what) {
  const auto bound = [&](const char* things, size_t count, size_t most) {
    if (count <= most)
      return;
    throw Error(ErrorCode::invalid_argument,
                cat(what, ": expected at most ", most, " ", things, " on a host, got ", count));
  };
  bound("GPUs", host.gpus.size(), kMaxHostDevices);
  bound("NICs", host.nics.size(), kMaxHostDevices);
  bound("cores", host.cores.size(), kMaxHostCores);
  for (Gpu& gpu : host.gpus) {
    if (gpu.uuid.value.empty() && gpu.health == kHealthy) {
      gpu.uuid = invented_uuid(cat(host.name, "/", gpu.index.value));
    }
  }
  if (const auto repeated = first_repeated(host.gpus)) {
    throw Error(ErrorCode::invalid_argument,
                cat(what,
                    ": expected each GPU ",
                    repeated->what,
                    " once, got ",
                    clean_text(repeated->value),
                    " twice"));
  }
  if (host.gpus.empty() && host.gpu_note.empty())
    host.gpu_note = "the inventory lists none";
}

std::vector<std::vector<Link>> unknown_links(size_t rows, size_t columns, bool square) {
  std::vector<std::vector<Link>> links(rows, std::vector<Link>(columns));
  if (square) {
    for (size_t i = 0; i < rows; ++i)
      links[i][i].kind = LinkKind::self;
  }
  return links;
}

}  // namespace muster
