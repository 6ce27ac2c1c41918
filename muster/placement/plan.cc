#include "muster/placement/plan.h"

#include <algorithm>
#include <iterator>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/request.h"

namespace muster {
namespace {

constexpr const char* kVisibilities[] = {"job", "own", "own-first", "all"};
constexpr const char* kNumaBindings[] = {"none", "node", "socket", "exclusive", "core-complex"};
constexpr const char* kSurpluses[] = {"error", "cpu", "drop", "share"};

template <class Enum, size_t N>
Enum parse_name(std::string_view text, const char* const (&names)[N], const char* flag) {
  const auto found = std::find(std::begin(names), std::end(names), text);
  if (found == std::end(names)) {
    throw Error(ErrorCode::invalid_argument,
                cat(flag, ": expected one of ", join(names, ", "), ", got '", text, "'"));
  }
  return static_cast<Enum>(found - std::begin(names));
}

void append_once(std::string& list, const std::string& uuid) {
  if (cat(",", list, ",").find(cat(",", uuid, ",")) != std::string::npos) return;
  if (!list.empty()) list += ',';
  list += uuid;
}

}  // namespace

const char* to_string(Visibility visibility) {
  return kVisibilities[static_cast<size_t>(visibility)];
}

Visibility parse_visibility(std::string_view text) {
  return parse_name<Visibility>(text, kVisibilities, "--visibility");
}

const char* to_string(Surplus surplus) {
  return kSurpluses[static_cast<size_t>(surplus)];
}

Surplus parse_surplus(std::string_view text) {
  return parse_name<Surplus>(text, kSurpluses, "--surplus");
}

const char* to_string(NumaBinding binding) {
  return kNumaBindings[static_cast<size_t>(binding)];
}

NumaBinding parse_numa_binding(std::string_view text) {
  return parse_name<NumaBinding>(text, kNumaBindings, "--numa-binding");
}

std::string DeviceAssignment::id() const {
  return kind == Kind::cuda ? uuid.value : cat("cpu:", cpu_slot);
}

RankRange ranks_on_host(const Plan& plan, int host_index) {
  const auto before = [](const RankPlan& rank, int host) { return rank.host_index < host; };
  const auto after = [](int host, const RankPlan& rank) { return host < rank.host_index; };
  const auto first = std::lower_bound(plan.ranks.begin(), plan.ranks.end(), host_index, before);
  const auto last = std::upper_bound(first, plan.ranks.end(), host_index, after);
  return {static_cast<size_t>(first - plan.ranks.begin()), static_cast<size_t>(last - first)};
}

std::optional<std::string> cuda_visible_devices(const Plan& plan, const RankPlan& rank) {
  if (plan.simulated || plan.visibility == Visibility::all) return std::nullopt;
  const bool on_gpu = rank.device.kind == DeviceAssignment::Kind::cuda;
  if (on_gpu && plan.visibility == Visibility::own) return rank.device.uuid.value;
  std::string list;
  if (on_gpu && plan.visibility == Visibility::own_first) list = rank.device.uuid.value;
  const auto [first, count] = ranks_on_host(plan, rank.host_index);
  for (size_t i = first; i < first + count; ++i) {
    const DeviceAssignment& device = plan.ranks[i].device;
    if (device.kind == DeviceAssignment::Kind::cuda) append_once(list, device.uuid.value);
  }
  if (list.empty()) return std::nullopt;
  return on_gpu ? list : std::string();
}

}  // namespace muster
