// Which AMD GPUs a process sees: ROCR_VISIBLE_DEVICES first, then what HIP makes of the rest.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include "muster/base/strings.h"
#include "muster/device/visible_devices.h"

namespace muster {
namespace {

// Positions in the list of GPUs, and why they end where they do.
struct Shown {
  std::vector<size_t> gpus;
  std::string remark;
};

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(
      out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

std::string ends(const char* variable, const std::string& entry, const char* why) {
  return cat(variable, ": '", entry, "' hides itself and all entries after it: ", why);
}

// A place in `shown`, or nothing.
using Place = std::optional<size_t>;

Place rocr_uuid(const std::vector<Gpu>& gpus,
                const std::vector<size_t>& shown,
                const std::string& token) {
  constexpr size_t kShortest = 5;  // "GPU-" and a digit
  constexpr size_t kLongest = 20;
  Place place;
  if (token.size() < kShortest || token.size() > kLongest)
    return place;
  for (size_t i = 0; i < shown.size(); ++i) {
    const std::string& uuid = gpus[shown[i]].uuid.value;
    if (uuid.starts_with(kNoUniqueId) || !upper(uuid).starts_with(token))
      continue;  // that one is muster's own
    if (place)
      return std::nullopt;
    place = i;
  }
  return place;
}

Place rocr_number(size_t count, const std::string& token) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(token.c_str(), &end, 0);
  const bool whole = !token.empty() && *end == 0 && errno == 0;
  if (!whole || value < 0 || static_cast<size_t>(value) >= count)
    return std::nullopt;
  return static_cast<size_t>(value);
}

Shown after_rocr(const std::vector<Gpu>& gpus,
                 const std::vector<size_t>& all,
                 const std::string& mask) {
  Shown shown;
  if (mask.empty())
    return shown;
  std::vector<std::string> tokens = split(mask, ',');
  if (tokens.back().empty())
    tokens.pop_back();  // a comma at the end is none
  tokens.resize(std::min(tokens.size(), all.size()));
  for (const std::string& entry : tokens) {
    const std::string token = upper(trim(entry));
    const Place place =
        token.starts_with('G') ? rocr_uuid(gpus, all, token) : rocr_number(all.size(), token);
    const char* why = place ? "it was named before" : "there is no such GPU";
    if (!place ||
        std::find(shown.gpus.begin(), shown.gpus.end(), all[*place]) != shown.gpus.end()) {
      shown.remark = ends("ROCR_VISIBLE_DEVICES", entry, why);
      break;
    }
    shown.gpus.push_back(all[*place]);
  }
  return shown;
}

Place hip_entry(const std::vector<Gpu>& gpus,
                const std::vector<size_t>& shown,
                const std::string& entry) {
  if (entry.find("GPU-") != std::string::npos) {
    for (size_t i = 0; i < shown.size(); ++i) {
      const std::string& uuid = gpus[shown[i]].uuid.value;
      if (!uuid.starts_with(kNoUniqueId) && uuid.find(entry) != std::string::npos)
        return i;
    }
    return std::nullopt;
  }
  const auto number = parse_int(entry);
  if (!number || *number < 0 || *number >= std::ssize(shown) || cat(*number) != entry)
    return std::nullopt;
  return static_cast<size_t>(*number);
}

Shown after_hip(const std::vector<Gpu>& gpus,
                const std::vector<size_t>& all,
                const char* variable,
                const std::string& mask) {
  Shown shown;
  std::vector<std::string> entries = split(mask, ',');
  if (entries.back().empty())
    entries.pop_back();
  for (const std::string& entry : entries) {
    const Place place = hip_entry(gpus, all, entry);
    if (!place) {
      shown.remark = ends(variable, entry, "there is no such GPU");
      break;
    }
    if (std::find(shown.gpus.begin(), shown.gpus.end(), all[*place]) == shown.gpus.end()) {
      shown.gpus.push_back(all[*place]);
    }
  }
  return shown;
}

}  // namespace

VisibleDevices visible_rocm_devices(const std::vector<Gpu>& gpus, const VisibilityMasks& masks) {
  Shown shown;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].vendor == Vendor::amd)
      shown.gpus.push_back(i);
  }
  VisibleDevices visible;
  if (masks.rocr)
    shown = after_rocr(gpus, shown.gpus, *masks.rocr);
  visible.remark = shown.remark;
  const bool own = masks.hip && !masks.hip->empty();
  const auto& hip = own ? masks.hip : masks.cuda;
  if (hip && !hip->empty()) {
    shown = after_hip(gpus, shown.gpus, own ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES", *hip);
    if (!shown.remark.empty())
      visible.remark += (visible.remark.empty() ? "" : "; ") + shown.remark;
  }
  visible.gpus = std::move(shown.gpus);
  return visible;
}

}  // namespace muster
