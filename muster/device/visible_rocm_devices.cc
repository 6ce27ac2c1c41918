// Which AMD GPUs a process sees: ROCR_VISIBLE_DEVICES first, then what HIP makes of the rest. The
// two read their variables differently (visible_devices.h), so each has its own functions here;
// both give places in the list of GPUs that the one before them has left.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/device/visible_devices.h"

namespace muster {
namespace {

// Positions in the list of GPUs, and why they end where they do.
struct Shown {
  Indices gpus;
  std::string remark;
};

std::string upper(std::string_view text) {
  return mapped_to<std::string>(text, [](unsigned char c) { return std::toupper(c); });
}

// Returns the entries of a mask; a comma at its end begins no other.
Strings entries_of(const std::string& mask) {
  Strings entries = split(mask, ',');
  if (entries.back().empty())
    entries.pop_back();
  return entries;
}

std::string ends(const char* variable, const std::string& entry, const char* why) {
  return cat(variable, ": '", entry, "' hides itself and all entries after it: ", why);
}

// A place in `shown`, or nothing.
using Place = std::optional<size_t>;

// The places in `shown` of the GPUs whose id is as `fits` asks. An id that muster made up for a GPU
// is none that ROCm knows.
template <class Fits>
Indices places_by_id(const Gpus& gpus, const Indices& shown, const Fits& fits) {
  return filtered_indices(shown.size(), [&](size_t place) {
    const std::string& uuid = gpus[shown[place]].uuid.value;
    return !uuid.starts_with(kNoUniqueId) && fits(uuid);
  });
}

// The id must be as long as ROCr wants it, and only one GPU may have it or begin with it.
Place rocr_uuid(const Gpus& gpus, const Indices& shown, const std::string& token) {
  constexpr size_t kShortest = 5;  // "GPU-" and a digit
  constexpr size_t kLongest = 20;
  if (token.size() < kShortest || token.size() > kLongest)
    return std::nullopt;
  const auto places = places_by_id(
      gpus, shown, [&](const std::string& uuid) { return upper(uuid).starts_with(token); });
  if (places.size() != 1)
    return std::nullopt;
  return places.front();
}

// ROCr reads numbers as C writes them: "0x1" and "01" are 1.
Place rocr_number(size_t count, const std::string& token) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(token.c_str(), &end, 0);
  const bool is_whole = !token.empty() && *end == 0 && errno == 0;
  if (!is_whole || value < 0 || std::cmp_greater_equal(value, count))
    return std::nullopt;
  return value;
}

// An empty mask hides everything. Of more entries than there are GPUs ROCr reads only as many.
Shown after_rocr(const Gpus& gpus, const Indices& all, const std::string& mask) {
  Shown shown;
  if (mask.empty())
    return shown;
  Strings entries = entries_of(mask);
  entries.resize(std::min(entries.size(), all.size()));
  for (const auto& entry : entries) {
    const auto token = upper(trim(entry));
    const Place place =
        token.starts_with('G') ? rocr_uuid(gpus, all, token) : rocr_number(all.size(), token);
    if (!place) {
      shown.remark = ends("ROCR_VISIBLE_DEVICES", entry, "there is no such GPU");
      break;
    }
    if (contains(shown.gpus, all[*place])) {
      shown.remark = ends("ROCR_VISIBLE_DEVICES", entry, "it was named before");
      break;
    }
    shown.gpus.push_back(all[*place]);
  }
  return shown;
}

// HIP takes any part of a UUID, and the first GPU that has it.
Place hip_uuid(const Gpus& gpus, const Indices& shown, const std::string& part) {
  const auto places =
      places_by_id(gpus, shown, [&](const std::string& uuid) { return has_text(uuid, part); });
  if (places.empty())
    return std::nullopt;
  return places.front();
}

// HIP takes decimal numbers without zeros before them.
Place hip_number(size_t count, const std::string& entry) {
  const auto number = parse_count(entry);
  const bool is_plain = number && cat(*number) == entry;
  if (!is_plain || std::cmp_greater_equal(*number, count))
    return std::nullopt;
  return *number;
}

// A GPU that was named before is passed over, and what follows it is not hidden.
Shown after_hip(const Gpus& gpus,
                const Indices& all,
                const char* variable,
                const std::string& mask) {
  Shown shown;
  for (const auto& entry : entries_of(mask)) {
    const bool is_uuid = has_text(entry, "GPU-");
    const Place place = is_uuid ? hip_uuid(gpus, all, entry) : hip_number(all.size(), entry);
    if (!place) {
      shown.remark = ends(variable, entry, "there is no such GPU");
      break;
    }
    if (!contains(shown.gpus, all[*place]))
      shown.gpus.push_back(all[*place]);
  }
  return shown;
}

}  // namespace

VisibleDevices visible_rocm_devices(const Gpus& gpus, const VisibilityMasks& masks) {
  Shown shown{.gpus = filtered_indices(gpus.size(),
                                       [&](size_t i) { return gpus[i].vendor == Vendor::amd; }),
              .remark = {}};
  VisibleDevices visible;
  if (masks.rocr)
    shown = after_rocr(gpus, shown.gpus, *masks.rocr);
  visible.remark = shown.remark;
  const HipMask hip = hip_mask(masks);
  const auto mask = hip.value.value_or("");
  if (!mask.empty()) {
    shown = after_hip(gpus, shown.gpus, hip.variable, mask);
    visible.remark += framed(visible.remark.empty() ? "" : "; ", shown.remark);
  }
  visible.gpus = std::move(shown.gpus);
  return visible;
}

}  // namespace muster
