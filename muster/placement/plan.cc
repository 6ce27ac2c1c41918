// The values' names stand in the order of their enums. A rank's variables list UUIDs, never
// indices: those mean different GPUs to different programs.
#include "muster/placement/plan.h"

#include <algorithm>
#include <span>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/placement/request.h"

namespace muster {
namespace {

constexpr const char* kVisibilities[] = {"job", "own", "own-first", "all"};
constexpr const char* kNumaBindings[] = {"none", "node", "socket", "exclusive", "core-complex"};
constexpr const char* kSurpluses[] = {"error", "cpu", "drop", "share"};

template <class Enum>
const char* name_of(std::span<const char* const> names, Enum value) {
  return names[static_cast<size_t>(value)];
}

template <class Enum>
Enum parse_name(std::string_view text, std::span<const char* const> names, const char* flag) {
  if (const auto place = index_with(names, text))
    return static_cast<Enum>(*place);
  throw invalid_argument(
      flag, ": expected one of ", join(names, ", "), ", got '", printable(text), "'");
}

bool is_on(const RankPlan& rank, Vendor vendor) {
  return rank.device.is_gpu() && rank.device.vendor == vendor;
}

// A vendor's variables are of no concern to a host without ranks on its GPUs.
bool any_on(const Plan& plan, int host_index, Vendor vendor) {
  return any_of(ranks_of_host(plan, host_index),
                [&](const RankPlan& rank) { return is_on(rank, vendor); });
}

// Returns the device as the vendor's variable takes it. An AMD GPU that has no id of its own goes
// by its number.
std::string visible_name(const DeviceAssignment& device) {
  return device.uuid.value.starts_with(kNoUniqueId) ? cat(device.index.value) : device.uuid.value;
}

// A rank sees its own GPUs in the order in which it has them.
void append_own(Strings& list, const RankPlan& rank) {
  list.push_back(visible_name(rank.device));
  append_mapped(list, rank.more_devices, visible_name);
}

// Returns the GPUs that `rank`, itself on one of this vendor's, sees.
std::string seen_by(const Plan& plan, const RankPlan& rank, Vendor vendor) {
  Strings list;
  if (plan.visibility != Visibility::job)
    append_own(list, rank);
  if (plan.visibility != Visibility::own) {
    for (const RankPlan& other : ranks_of_host(plan, rank.host_index)) {
      if (is_on(other, vendor))
        append_own(list, other);
    }
  }
  return join(distinct(list), ",");
}

}  // namespace

const char* to_string(Visibility visibility) {
  return name_of(kVisibilities, visibility);
}

Visibility parse_visibility(std::string_view text) {
  return parse_name<Visibility>(text, kVisibilities, "--visibility");
}

const char* to_string(Surplus surplus) {
  return name_of(kSurpluses, surplus);
}

Surplus parse_surplus(std::string_view text) {
  return parse_name<Surplus>(text, kSurpluses, "--surplus");
}

const char* to_string(NumaBinding binding) {
  return name_of(kNumaBindings, binding);
}

NumaBinding parse_numa_binding(std::string_view text) {
  return parse_name<NumaBinding>(text, kNumaBindings, "--numa-binding");
}

std::string DeviceAssignment::id() const {
  return is_gpu() ? uuid.value : cat("cpu:", cpu_slot);
}

std::string gpu_numbers(const RankPlan& rank) {
  const auto after_comma = [](const DeviceAssignment& more) {
    return cat(", ", more.index.value);
  };
  return cat(rank.device.index.value, sum_of<std::string>(rank.more_devices, after_comma));
}

RankRange ranks_on_host(const Plan& plan, int host_index) {
  const auto found = std::ranges::equal_range(plan.ranks, host_index, {}, &RankPlan::host_index);
  const size_t first = found.begin() - plan.ranks.begin();
  return {first, found.size()};
}

std::span<const RankPlan> ranks_of_host(const Plan& plan, int host_index) {
  const auto [first, count] = ranks_on_host(plan, host_index);
  return std::span(plan.ranks).subspan(first, count);
}

// A simulated plan names GPUs that are not there.
VisibilityVariables visibility_variables(const Plan& plan, const RankPlan& rank) {
  if (plan.simulated || plan.visibility == Visibility::all)
    return {};
  VisibilityVariables variables;
  for (const Vendor vendor : {Vendor::nvidia, Vendor::amd}) {
    if (!any_on(plan, rank.host_index, vendor))
      continue;
    const bool is_own = is_on(rank, vendor);
    const std::string seen = is_own ? seen_by(plan, rank, vendor) : "";
    if (vendor == Vendor::nvidia) {
      variables["CUDA_VISIBLE_DEVICES"] = seen;
      continue;
    }
    variables["ROCR_VISIBLE_DEVICES"] = seen;
    variables["HIP_VISIBLE_DEVICES"] = std::nullopt;
    if (is_own)
      variables.try_emplace("CUDA_VISIBLE_DEVICES", "");  // HIP takes it as unset
  }
  return variables;
}

}  // namespace muster
