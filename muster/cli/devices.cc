#include "muster/cli/devices.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>

#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/device/inventory_json.h"
#include "muster/device/probe.h"
#include "muster/placement/text_table.h"

namespace muster {
namespace {

struct DevicesOptions {
  bool json = false;
  std::string inventory;
};

constexpr const char* kExamples = R"(Examples:
  muster devices                        what this machine has
  muster devices --json > box.json      the same for programs, and for --inventory
  muster devices --inventory box.json   what that machine had
)";

template <class T>
std::string or_dash(const std::optional<T>& value, const char* unit) {
  return value ? cat(*value, unit) : "-";
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

std::string memory_text(const Gpu& gpu) {
  if (gpu.memory_total_bytes == 0) return "-";
  return cat(format_bytes(gpu.memory_total_bytes - gpu.memory_free_bytes), " / ",
             format_bytes(gpu.memory_total_bytes));
}

std::string processes_text(const Gpu& gpu) {
  constexpr size_t kMaxShown = 4;
  std::vector<int> pids;
  for (size_t i = 0; i < gpu.processes.size() && i < kMaxShown; ++i) pids.push_back(gpu.processes[i].pid);
  if (pids.empty()) return "-";
  const size_t more = gpu.processes.size() - pids.size();
  return join(pids, " ") + (more > 0 ? cat(" and ", more, " more") : "");
}

std::string gpu_table(const std::vector<Gpu>& gpus) {
  std::vector<std::vector<std::string>> rows;
  for (const Gpu& gpu : gpus) {
    std::optional<long> watts;
    if (gpu.power_watts) watts = std::lround(*gpu.power_watts);
    rows.push_back({cat(gpu.index.value), or_dash(gpu.uuid.value), or_dash(gpu.pci.value), or_dash(gpu.model),
                    memory_text(gpu), or_dash(gpu.utilization_percent, " %"),
                    or_dash(gpu.temperature_celsius, " C"), or_dash(watts, " W"),
                    or_dash(gpu.compute_capability), or_dash(gpu.numa_node, ""), gpu.health,
                    processes_text(gpu)});
  }
  return format_table({{"GPU", true},
                       {"UUID"},
                       {"PCI"},
                       {"model"},
                       {"memory used / total", true},
                       {"util", true},
                       {"temp", true},
                       {"power", true},
                       {"cc", true},
                       {"NUMA", true},
                       {"health"},
                       {"processes"}},
                      rows);
}

std::string host_text(const Host& host) {
  std::string text = cat("host ", printable(host.name));
  if (!host.driver_version.empty()) text += cat(", NVIDIA driver ", printable(host.driver_version));
  text += '\n';
  text += host.gpus.empty() ? cat("no GPU: ", printable(or_dash(host.gpu_note)), "\n") : gpu_table(host.gpus);
  text += cat("CPU: ", host.num_cores, host.num_cores == 1 ? " core, " : " cores, ", host.cpu_slots,
              host.cpu_slots == 1 ? " slot" : " slots",
              " (ranks started where no GPU is used; MUSTER_CPU_SLOTS changes it)\n");
  return text;
}

Inventory find_inventory(const DevicesOptions& options) {
  if (!options.inventory.empty()) return read_inventory(options.inventory);
  ProbeOptions probe;
  probe.nvml.detail = GpuDetail::full;
  return probe_this_machine(probe);
}

std::string devices_text(const DevicesOptions& options) {
  const Inventory inventory = find_inventory(options);
  if (options.json) return inventory_to_json(inventory);
  std::string text;
  if (inventory.simulated) text += cat("from ", inventory.source, ", not this machine\n");
  for (const Host& host : inventory.hosts) text += (text.empty() ? "" : "\n") + host_text(host);
  return text;
}

}  // namespace

void add_devices(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand("devices", "Show this machine's GPUs and CPU slots");
  const auto options = std::make_shared<DevicesOptions>();
  command->add_flag("--json", options->json, "Print JSON, which --inventory reads back");
  command->add_option("--inventory", options->inventory, "Show the machine in this file instead of this one")
      ->type_name("FILE");
  command->footer(kExamples);
  command->callback([options, exit_code] {
    const std::string text = devices_text(*options);
    const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
    *exit_code = written ? 0 : 1;
  });
}

}  // namespace muster
