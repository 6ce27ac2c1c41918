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

bool is_on(const RankPlan& rank, Vendor vendor) {
  return rank.device.kind == DeviceAssignment::Kind::gpu && rank.device.vendor == vendor;
}

bool any_on(const Plan& plan, int host_index, Vendor vendor) {
  const auto [first, count] = ranks_on_host(plan, host_index);
  const auto from = plan.ranks.begin() + static_cast<std::ptrdiff_t>(first);
  return std::any_of(from, from + static_cast<std::ptrdiff_t>(count), [&](const RankPlan& rank) {
    return is_on(rank, vendor);
  });
}

void append_once(std::string& list, const std::string& uuid) {
  if (cat(",", list, ",").find(cat(",", uuid, ",")) != std::string::npos)
    return;
  if (!list.empty())
    list += ',';
  list += uuid;
}

// As the vendor's variable takes it. An AMD GPU that has no id of its own goes by its number.
std::string visible_name(const DeviceAssignment& device) {
  return device.uuid.value.starts_with(kNoUniqueId) ? cat(device.index.value) : device.uuid.value;
}

void append_own(std::string& list, const RankPlan& rank) {
  append_once(list, visible_name(rank.device));
  for (const DeviceAssignment& device : rank.more_devices)
    append_once(list, visible_name(device));
}

// The GPUs that `rank`, itself on one of this vendor's, sees.
std::string seen_by(const Plan& plan, const RankPlan& rank, Vendor vendor) {
  std::string list;
  if (plan.visibility != Visibility::job)
    append_own(list, rank);
  if (plan.visibility == Visibility::own)
    return list;
  const auto [first, count] = ranks_on_host(plan, rank.host_index);
  for (size_t i = first; i < first + count; ++i) {
    if (is_on(plan.ranks[i], vendor))
      append_own(list, plan.ranks[i]);
  }
  return list;
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
  return kind == Kind::gpu ? uuid.value : cat("cpu:", cpu_slot);
}

RankRange ranks_on_host(const Plan& plan, int host_index) {
  const auto before = [](const RankPlan& rank, int host) {
    return rank.host_index < host;
  };
  const auto after = [](int host, const RankPlan& rank) {
    return host < rank.host_index;
  };
  const auto first = std::lower_bound(plan.ranks.begin(), plan.ranks.end(), host_index, before);
  const auto last = std::upper_bound(first, plan.ranks.end(), host_index, after);
  return {static_cast<size_t>(first - plan.ranks.begin()), static_cast<size_t>(last - first)};
}

VisibilityVariables visibility_variables(const Plan& plan, const RankPlan& rank) {
  if (plan.simulated || plan.visibility == Visibility::all)
    return {};
  VisibilityVariables variables;
  for (const Vendor vendor : {Vendor::nvidia, Vendor::amd}) {
    if (!any_on(plan, rank.host_index, vendor))
      continue;
    const bool nvidia = vendor == Vendor::nvidia;
    variables[nvidia ? "CUDA_VISIBLE_DEVICES" : "ROCR_VISIBLE_DEVICES"] =
        is_on(rank, vendor) ? seen_by(plan, rank, vendor) : "";
    if (!nvidia)
      variables["HIP_VISIBLE_DEVICES"] = std::nullopt;
    if (!nvidia && is_on(rank, vendor))
      variables.try_emplace("CUDA_VISIBLE_DEVICES", "");  // HIP takes it as unset
  }
  return variables;
}

}  // namespace muster
