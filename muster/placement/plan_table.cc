// A column is a title and a function that gives a rank's cell; a column whose cells are all empty
// is left out.
#include "muster/placement/plan_table.h"

#include <algorithm>
#include <string_view>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/draw/text_table.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

struct Column {
  std::string_view title;
  bool right;
  std::string (*cell)(const RankPlan& rank);
};

// The instances of a GPU with an older driver differ at the end of their names: MIG-GPU-<uuid>/7/0.
std::string short_uuid(const std::string& uuid) {
  const size_t instance = std::min(uuid.find('/'), uuid.size());
  return uuid.substr(0, std::min(kShortUuid, instance)) + uuid.substr(instance);
}

// A rank of several GPUs shows their indices alone: UUIDs would fill the line.
std::string device_cell(const RankPlan& rank) {
  const DeviceAssignment& device = rank.device;
  if (!device.is_gpu())
    return cat("CPU slot ", device.cpu_slot);
  if (!rank.more_devices.empty())
    return cat("GPUs ", gpu_numbers(rank), "  ", device.model);
  return cat("GPU ", device.index.value, "  ", short_uuid(device.uuid.value), "  ", device.model);
}

std::string ordinal_cell(const RankPlan& rank) {
  return rank.device.is_gpu() ? cat(rank.device.ordinal.value) : "";
}

std::string numa_cell(const RankPlan& rank) {
  return text_of(rank.numa_node);
}

std::string share_cell(const RankPlan& rank) {
  return text_of_count(rank.batch_share);
}

constexpr std::string_view kLocalRank = "local";

constexpr Column kColumns[] = {
    {"rank", true, [](const RankPlan& rank) { return cat(rank.rank); }},
    {"host", false, [](const RankPlan& rank) { return rank.host; }},
    {kLocalRank, true, [](const RankPlan& rank) { return cat(rank.local_rank); }},
    {"device", false, device_cell},
    {"ordinal", true, ordinal_cell},
    {"NUMA", true, numa_cell},
    {"near CPUs", false, [](const RankPlan& rank) { return rank.bind_cpus ? "" : rank.cpus; }},
    {"bound to CPUs", false, [](const RankPlan& rank) { return rank.bind_cpus ? rank.cpus : ""; }},
    {"share", true, share_cell},
    {"why", false, [](const RankPlan& rank) { return rank.reason; }},
};

// The mesh is the plan's and not a rank's, so its column is no entry of the table.
void add_mesh_column(const MeshShape& mesh, TableColumns& heads, TableRows& rows) {
  heads.push_back({"mesh", false});
  for (const int rank : int_indices_of(rows))
    rows[rank].push_back(coordinates_text(mesh, rank));
}

}  // namespace

// Control characters in notes are replaced; the table replaces its own.
std::string plan_table(const Plan& plan) {
  TableColumns heads;
  TableRows rows(plan.ranks.size());
  for (const Column& column : kColumns) {
    const auto cells = mapped(plan.ranks, [&](const RankPlan& rank) { return column.cell(rank); });
    if (all_of(cells, &std::string::empty))
      continue;
    heads.push_back({std::string(column.title), column.right});
    for (const size_t i : indices_of(rows))
      rows[i].push_back(text_or(cells[i], "-"));
    if (column.title == kLocalRank && !plan.mesh.axes.empty())
      add_mesh_column(plan.mesh, heads, rows);
  }
  std::string text = format_table(heads, rows);
  text += sum_of<std::string>(
      plan.notes, [&](const auto& note) { return cat("note: ", printable(note), "\n"); });
  return text;
}

}  // namespace muster
