// The list is cut where it becomes invalid, first by its form alone (parse_visible_devices), then
// by the devices that there are. Matching knows three kinds of entries: indices, UUIDs of GPUs, and
// UUIDs of MIG instances; a prefix that fits several devices fits none.
#include "muster/device/visible_devices.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"

namespace muster {
namespace {

constexpr std::string_view kGpuPrefix = "GPU-";
constexpr std::string_view kMigPrefix = "MIG-";

// Returns the number that `text` starts with, as strtol reads it; -1 when it starts with none, is
// negative or too big.
int leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+'))
    text.remove_prefix(1);
  const size_t digits = std::ranges::find_if_not(text, is_digit) - text.begin();
  const int most = negative ? 0 : std::numeric_limits<int>::max();
  return parse_number(text.substr(0, digits), 0, most).value_or(-1);
}

// The kind of an entry that stands alone, or first in a list.
VisibleEntry::Kind kind_of_entry(std::string_view text) {
  if (text.starts_with(kGpuPrefix))
    return VisibleEntry::Kind::gpu_uuid;
  if (text.starts_with(kMigPrefix))
    return VisibleEntry::Kind::mig;
  return VisibleEntry::Kind::index;
}

// "is read as 0" for "0 1", "0x1" and "1.0": a number with something behind it, which was surely
// not meant so. Empty for a number alone, blanks around it or not.
std::string misreading_of(const VisibleEntry& entry) {
  const std::string_view text = trim(entry.text);
  if (entry.kind != VisibleEntry::Kind::index || parse_int(text) || text.starts_with('+'))
    return "";
  return cat("is read as ", entry.index, ", as CUDA reads it: entries are numbers between commas");
}

// An entry of another kind than the list's is invalid; an index may begin with anything strtol
// takes.
VisibleEntry parse_entry(const std::string& text, VisibleEntry::Kind list_kind) {
  using Kind = VisibleEntry::Kind;
  if (list_kind != Kind::index) {
    const bool is_of_list = kind_of_entry(text) == list_kind;
    return {is_of_list ? list_kind : Kind::invalid, -1, text};
  }
  const int index = leading_number(text);
  return {index >= 0 ? Kind::index : Kind::invalid, index, text};
}

// The one device that an entry names, or why there is none.
struct Match {
  size_t gpu = 0;
  size_t instance = 0;  // of MIG
  std::string problem{};
};

Indices nvidia_gpus(const Gpus& gpus, const auto& fits) {
  return filtered_indices(
      gpus.size(), [&](size_t i) { return gpus[i].vendor == Vendor::nvidia && fits(gpus[i]); });
}

Match match_index(const Gpus& gpus, int index) {
  const auto fitting = nvidia_gpus(gpus, [&](const Gpu& gpu) { return gpu.index.value == index; });
  if (fitting.empty())
    return {.problem = "there is no such GPU"};
  return {.gpu = fitting.front()};
}

// Any beginning of a UUID will do as long as only one GPU has it.
Match match_uuid(const Gpus& gpus, const std::string& prefix) {
  const auto fitting =
      nvidia_gpus(gpus, [&](const Gpu& gpu) { return gpu.uuid.value.starts_with(prefix); });
  if (fitting.empty())
    return {.problem = "no GPU's UUID begins with it"};
  if (fitting.size() > 1)
    return {.problem = "the UUIDs of several GPUs begin with it"};
  return {.gpu = fitting.front()};
}

// Instances count only where MIG mode is on; a driver may list old ones.
Match match_mig(const Gpus& gpus, const std::string& prefix) {
  Match match{.problem = "no MIG instance's UUID begins with it"};
  for (const size_t i : indices_of(gpus)) {
    if (!gpus[i].mig_enabled)
      continue;
    for (const size_t k : indices_of(gpus[i].mig)) {
      if (!gpus[i].mig[k].uuid.value.starts_with(prefix))
        continue;
      if (match.problem.empty())
        return {.problem = "the UUIDs of several MIG instances begin with it"};
      match = {.gpu = i, .instance = k};
    }
  }
  return match;
}

Match match_entry(const Gpus& gpus, const VisibleEntry& entry) {
  switch (entry.kind) {
    case VisibleEntry::Kind::index:
      return match_index(gpus, entry.index);
    case VisibleEntry::Kind::gpu_uuid:
      return match_uuid(gpus, entry.text);
    case VisibleEntry::Kind::mig:
      return match_mig(gpus, entry.text);
    case VisibleEntry::Kind::invalid:
      break;
  }
  return {.problem = "it is not valid here"};
}

// Adds the device; false when it is there already.
template <class Device>
bool add_once(std::vector<Device>& devices, const Device& device) {
  if (contains(devices, device))
    return false;
  devices.push_back(device);
  return true;
}

// An empty mask is not an unset one: it hides everything. So get_env, which takes both alike, would
// not do.
std::optional<std::string> mask_in(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr)
    return std::nullopt;
  return value;
}

}  // namespace

VisibilityMasks inherited_masks() {
  return {.cuda = mask_in("CUDA_VISIBLE_DEVICES"),
          .rocr = mask_in("ROCR_VISIBLE_DEVICES"),
          .hip = mask_in("HIP_VISIBLE_DEVICES")};
}

HipMask hip_mask(const VisibilityMasks& masks) {
  if (!masks.hip.value_or("").empty())
    return {"HIP_VISIBLE_DEVICES", masks.hip};
  return {"CUDA_VISIBLE_DEVICES", masks.cuda};
}

std::vector<VisibleEntry> parse_visible_devices(std::string_view text) {
  std::vector<VisibleEntry> entries;
  if (text.empty())
    return entries;
  const VisibleEntry::Kind kind = kind_of_entry(text);
  for (const auto& piece : split(text, ',')) {
    entries.push_back(parse_entry(piece, kind));
    if (entries.back().kind == VisibleEntry::Kind::invalid)
      break;
  }
  return entries;
}

// The result keeps what came before an invalid entry, and nothing at all once a device comes twice.
VisibleDevices visible_devices(const Gpus& gpus, std::string_view text) {
  VisibleDevices visible;
  const auto entries = parse_visible_devices(text);
  for (const size_t i : indices_of(entries)) {
    const bool is_mig = entries[i].kind == VisibleEntry::Kind::mig;
    const auto entry = cat("entry ", i + 1, ", '", entries[i].text, "', ");
    const Match match = match_entry(gpus, entries[i]);
    if (!match.problem.empty()) {
      visible.remark = cat(entry, "hides itself and all entries after it: ", match.problem);
      break;
    }
    const bool added = is_mig ? add_once(visible.mig, {match.gpu, match.instance})
                              : add_once(visible.gpus, match.gpu);
    if (!added) {
      visible.gpus.clear();
      visible.mig.clear();
      visible.remark =
          cat(entry, "names ", is_mig ? "an instance" : "a GPU", " twice, which hides all");
      break;
    }
    visible.by_index = entries[i].kind == VisibleEntry::Kind::index;
    const auto misread = misreading_of(entries[i]);
    if (visible.remark.empty() && !misread.empty())
      visible.remark = cat(entry, misread);
  }
  return visible;
}

}  // namespace muster
