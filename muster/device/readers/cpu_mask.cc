#include "muster/device/readers/cpu_mask.h"

#include <charconv>
#include <cstdint>
#include <string>

#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr size_t kMaxGroups = 16384 / 32;

std::optional<uint32_t> parse_group(std::string_view text) {
  if (text.starts_with("0x"))
    text.remove_prefix(2);
  if (text.empty())
    return 0;  // hwloc leaves groups of zeros away
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() > 8)
    return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_mask(std::string_view text) {
  text = trim(text);
  if (text.empty() || text.size() > kMaxGroups * 11)
    return std::nullopt;
  const std::vector<std::string> groups = split(text, ',');
  if (groups.size() > kMaxGroups)
    return std::nullopt;
  std::vector<int> cpus;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto bits = parse_group(groups[groups.size() - 1 - i]);
    if (!bits)
      return std::nullopt;
    for (int bit = 0; bit < 32; ++bit) {
      if ((*bits >> static_cast<unsigned>(bit) & 1U) != 0)
        cpus.push_back(static_cast<int>(i) * 32 + bit);
    }
  }
  return cpus;
}

}  // namespace muster
