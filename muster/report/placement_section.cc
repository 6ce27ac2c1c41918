// The section of the placement: the machine's picture with the ranks on it, and why each rank is
// where it is.
#include <string>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/draw/xml_text.h"
#include "muster/placement/picture/draw_svg.h"
#include "muster/report/html.h"
#include "muster/report/job_sections.h"

namespace muster {
namespace {

constexpr int kMostHostsDrawn = 8;

void add_gpu(Host& host, const DeviceAssignment& device) {
  if (!device.is_gpu())
    return;
  if (contains(host.gpus, device.index, &Gpu::index))
    return;
  host.gpus.push_back({.index = device.index,
                       .uuid = device.uuid,
                       .pci = device.pci,
                       .vendor = device.vendor,
                       .model = device.model});
}

// Returns the hosts as far as the plan itself tells of them. It takes the part of the launchers'
// own picture if that was not kept.
Inventory inventory_of(const Plan& plan) {
  Inventory inventory{.source = "the plan"};
  for (const RankPlan& rank : plan.ranks) {
    if (inventory.hosts.empty() || inventory.hosts.back().name != rank.host)
      inventory.hosts.push_back({.name = rank.host});
    add_gpu(inventory.hosts.back(), rank.device);
    for (const DeviceAssignment& more : rank.more_devices)
      add_gpu(inventory.hosts.back(), more);
  }
  return inventory;
}

bool has_hosts_of(const Inventory& inventory, const Plan& plan) {
  const auto is_known = [&](const std::string& host) {
    return contains(inventory.hosts, host, &Host::name);
  };
  return all_of(plan.ranks, is_known, &RankPlan::host);
}

std::string device_of(const RankPlan& rank) {
  if (!rank.device.is_gpu())
    return cat("CPU slot ", rank.device.cpu_slot);
  const std::string text = "GPU " + gpu_numbers(rank);
  return rank.device.model.empty() ? text : cat(text, " (", rank.device.model, ")");
}

// Columns that no rank needs, such as the share of a global batch, are left out by html_table().
std::string ranks_table(const Plan& plan) {
  TableRows rows;
  for (const RankPlan& rank : plan.ranks) {
    rows.push_back({cat(rank.rank),
                    rank.host,
                    cat(rank.local_rank),
                    device_of(rank),
                    rank.cpus,
                    text_of_count(rank.batch_share),
                    rank.reason});
  }
  const TableColumns columns = {
      {"rank", true}, {"host"}, {"local", true}, {"device"}, {"CPUs"}, {"batch", true}, {"why"}};
  return html_table(columns, rows);
}

// Draws the machine. It is empty for machines without a GPU, of which there is nothing to see.
std::string picture_of(const JobRun& run, const Plan& plan) {
  // The kept picture may be of the launcher's host alone.
  const bool kept = run.record.machine && has_hosts_of(*run.record.machine, plan);
  const Inventory inventory = kept ? *run.record.machine : inventory_of(plan);
  if (all_of(inventory.hosts, [](const Host& host) { return host.gpus.empty(); }))
    return {};
  std::string svg = draw_svg(inventory, &plan, {.max_hosts = kMostHostsDrawn});
  // An XML head has no place within a page.
  if (const size_t begin = svg.find("<svg"); begin != npos)
    svg.erase(0, begin);
  return cat("<div class=\"picture\">\n", svg, "</div>\n");
}

}  // namespace

// Notes are the planner's, such as on slow links between the ranks of a group.
std::string placement_section(const JobRun& run) {
  if (!run.plan || run.plan->ranks.empty())
    return {};
  const Plan& plan = *run.plan;
  std::string html = picture_of(run, plan) + ranks_table(plan);
  html += sum_of<std::string>(plan.notes, [&](const auto& note) {
    return cat("<p class=\"small\" style=\"margin-top:10px\">Note: ", xml_text(note), "</p>\n");
  });
  auto facts = cat("Policy ", plan.policy, ", ", plural(plan.ranks.size(), "rank"));
  if (plan.global_batch > 0)
    facts += cat(", global batch ", plan.global_batch);
  if (plan.simulated)
    facts += "; the machine is simulated, the ranks ran on the CPU";
  return html_section("placement", "Placement", html, facts);
}

}  // namespace muster
