#include "muster/placement/plan_table.h"

#include <algorithm>

#include "muster/base/strings.h"
#include "muster/draw/text_table.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

struct Column {
  const char* title;
  bool right;
  std::string (*cell)(const RankPlan& rank);
};

bool on_gpu(const RankPlan& rank) {
  return rank.device.kind == DeviceAssignment::Kind::gpu;
}

// The instances of a GPU with an older driver differ at the end of their names: MIG-GPU-<uuid>/7/0.
std::string short_uuid(const std::string& uuid) {
  const size_t instance = std::min(uuid.find('/'), uuid.size());
  return uuid.substr(0, std::min(kShortUuid, instance)) + uuid.substr(instance);
}

std::string device_cell(const RankPlan& rank) {
  const DeviceAssignment& device = rank.device;
  if (!on_gpu(rank))
    return cat("CPU slot ", device.cpu_slot);
  if (!rank.more_devices.empty()) {
    std::string indices = cat(device.index.value);
    for (const DeviceAssignment& more : rank.more_devices)
      indices += cat(", ", more.index.value);
    return cat("GPUs ", indices, "  ", device.model);
  }
  return cat("GPU ", device.index.value, "  ", short_uuid(device.uuid.value), "  ", device.model);
}

constexpr Column kColumns[] = {
    {"rank", true, [](const RankPlan& rank) { return cat(rank.rank); }},
    {"host", false, [](const RankPlan& rank) { return rank.host; }},
    {"local", true, [](const RankPlan& rank) { return cat(rank.local_rank); }},
    {"device", false, device_cell},
    {"ordinal",
     true,
     [](const RankPlan& rank) { return on_gpu(rank) ? cat(rank.device.ordinal.value) : ""; }},
    {"NUMA", true, [](const RankPlan& rank) { return rank.numa_node ? cat(*rank.numa_node) : ""; }},
    {"near CPUs", false, [](const RankPlan& rank) { return rank.bind_cpus ? "" : rank.cpus; }},
    {"bound to CPUs", false, [](const RankPlan& rank) { return rank.bind_cpus ? rank.cpus : ""; }},
    {"share",
     true,
     [](const RankPlan& rank) { return rank.batch_share > 0 ? cat(rank.batch_share) : ""; }},
    {"why", false, [](const RankPlan& rank) { return rank.reason; }},
};

}  // namespace

std::string plan_table(const Plan& plan) {
  std::vector<TableColumn> heads;
  std::vector<std::vector<std::string>> rows(plan.ranks.size());
  for (const Column& column : kColumns) {
    std::vector<std::string> cells;
    cells.reserve(rows.size());
    for (const RankPlan& rank : plan.ranks)
      cells.push_back(column.cell(rank));
    if (std::all_of(
            cells.begin(), cells.end(), [](const std::string& cell) { return cell.empty(); }))
      continue;
    heads.push_back({column.title, column.right});
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i].push_back(cells[i].empty() ? "-" : std::move(cells[i]));
    if (column.title == std::string_view("local") && !plan.mesh.axes.empty()) {
      heads.push_back({"mesh", false});
      for (size_t i = 0; i < rows.size(); ++i)
        rows[i].push_back(coordinates_text(plan.mesh, static_cast<int>(i)));
    }
  }
  std::string text = format_table(heads, rows);
  for (const std::string& note : plan.notes)
    text += cat("note: ", printable(note), "\n");
  return text;
}

}  // namespace muster
