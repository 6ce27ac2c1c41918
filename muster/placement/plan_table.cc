#include "muster/placement/plan_table.h"

#include "muster/base/strings.h"
#include "muster/placement/text_table.h"

namespace muster {
namespace {

// "GPU-" and eight digits: enough to tell the GPUs of a host apart at a glance.
constexpr size_t kShortUuid = 12;

std::vector<std::string> row_of(const RankPlan& rank) {
  const DeviceAssignment& device = rank.device;
  if (device.kind == DeviceAssignment::Kind::cpu) {
    return {cat(rank.rank), rank.host, cat(rank.local_rank), cat("CPU slot ", device.cpu_slot), "-",
            rank.reason};
  }
  return {cat(rank.rank),
          rank.host,
          cat(rank.local_rank),
          cat("GPU ", device.index.value, "  ", device.uuid.value.substr(0, kShortUuid), "  ", device.model),
          cat(device.ordinal.value),
          rank.reason};
}

}  // namespace

std::string plan_table(const Plan& plan) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(plan.ranks.size());
  for (const RankPlan& rank : plan.ranks) rows.push_back(row_of(rank));
  std::string text =
      format_table({{"rank", true}, {"host"}, {"local", true}, {"device"}, {"ordinal", true}, {"why"}}, rows);
  for (const std::string& note : plan.notes) text += cat("note: ", printable(note), "\n");
  return text;
}

}  // namespace muster
