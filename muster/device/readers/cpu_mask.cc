// A mask is groups of 32 bits, the highest first, with commas between them.
#include "muster/device/readers/cpu_mask.h"

#include <cstdint>
#include <ranges>
#include <string>

#include "muster/base/strings.h"
#include "muster/device/numbers.h"

namespace muster {
namespace {

constexpr size_t kMaxGroups = 16384 / 32;

// hwloc leaves groups of zeros away, so an empty group is one.
std::optional<uint32_t> parse_group(std::string_view text) {
  if (text.starts_with("0x"))
    text.remove_prefix(2);
  if (text.empty())
    return 0;
  return text.size() <= 8 ? parse_hex(text) : std::nullopt;
}

}  // namespace

// The text is bounded before it is cut into groups.
std::optional<Ints> parse_cpu_mask(std::string_view text) {
  text = trim(text);
  if (text.empty() || text.size() > kMaxGroups * 11)
    return std::nullopt;
  const Strings groups = split(text, ',');
  if (groups.size() > kMaxGroups)
    return std::nullopt;
  Ints cpus;
  int first = 0;  // the CPU of the group's lowest bit
  for (const auto& group : std::views::reverse(groups)) {
    const auto bits = parse_group(group);
    if (!bits)
      return std::nullopt;
    for (int bit = 0; bit < 32; ++bit) {
      if ((*bits >> bit & 1U) != 0)
        cpus.push_back(first + bit);
    }
    first += 32;
  }
  return cpus;
}

}  // namespace muster
