// A text is made once, or again and again with --watch, of this machine or of a file. Only of this
// machine is it known which jobs hold its GPUs.
#include "muster/base/clock.h"
#include "muster/base/lookup.h"
#include "muster/cli/commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/mapped.h"
#include "muster/base/named_file.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"
#include "muster/cli/devices_text.h"
#include "muster/cli/value_flags.h"
#include "muster/cli/watch.h"
#include "muster/device/inventory_json.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/launch/lease.h"
#include "muster/placement/picture/draw_svg.h"
#include "muster/placement/plan_json.h"

namespace muster {
namespace {

struct DevicesOptions {
  bool json = false;
  std::string inventory;
  std::string host;
  std::string sysroot;
  bool watch = false;
  std::string interval;  // of --watch
  int count = 0;
  std::string svg;
  std::string plan;
};

constexpr auto kDevicesExamples = R"(Examples:
  muster devices                        what this machine has
  muster devices --watch=5              the same every 5 seconds, until Ctrl-C
  muster devices --json > box.json      the same for programs, and for --inventory
  muster devices --inventory box.json   what that machine had
  muster devices --svg box.svg          a picture of it
)";

// Reads or probes the machine, and leaves only the host that was asked for.
Inventory find_inventory(const DevicesOptions& options) {
  Inventory inventory;
  if (!options.inventory.empty()) {
    inventory = read_named("--inventory", [&] { return read_inventory(options.inventory); });
  } else {
    inventory = probe_this_machine({.detail = GpuDetail::full,
                                    .links = true,
                                    .cpu_topology = options.sysroot.empty(),
                                    .sysroot = options.sysroot});
  }
  if (options.host.empty())
    return inventory;
  std::erase_if(inventory.hosts, [&](const Host& host) { return host.name != options.host; });
  if (inventory.hosts.empty()) {
    throw invalid_argument("devices: expected a host of ",
                           inventory.source,
                           " after --host, got '",
                           printable(options.host),
                           "'");
  }
  return inventory;
}

// Returns who holds the machine's GPUs. If that cannot be known, `trouble` is a line that says why,
// and the table has no such column.
DevicesTextOptions find_leases(const Inventory& inventory, std::string& trouble) {
  DevicesTextOptions options{.leases = true};
  try {
    const LeaseFolder folder({.create = false});
    const auto look = [&](const GpuUuid& uuid) {
      const auto lines =
          mapped(folder.holders(uuid), [](const LeaseHolder& holder) { return describe(holder); });
      if (!lines.empty())
        options.holders[uuid.value] = join(lines, "; ");
    };
    for (const Host& host : inventory.hosts) {
      for (const Gpu& gpu : host.gpus) {
        if (!gpu.uuid.value.empty())
          look(gpu.uuid);
        for (const MigInstance& instance : gpu.mig)
          look(instance.uuid);
      }
    }
  } catch (const Error& error) {
    trouble = cat("leases: ", error.what(), "\n");
    options.leases = false;
  }
  return options;
}

// A machine that is read from a file has no leases here.
std::string make_text(const DevicesOptions& options) {
  const Inventory inventory = find_inventory(options);
  if (options.json)
    return inventory_to_json(inventory);
  if (inventory.simulated || !options.sysroot.empty())
    return devices_text(inventory);
  std::string trouble;
  const DevicesTextOptions text_options = find_leases(inventory, trouble);
  return devices_text(inventory, text_options) + trouble;
}

// Documents of JSON follow each other without a separator, as programs read them.
WatchOptions watch_options(const DevicesOptions& options) {
  WatchOptions watch{.count = options.count};
  if (!options.interval.empty())
    watch.interval = parse_duration(options.interval, "devices --watch");
  if (watch.interval <= milliseconds(0)) {
    throw invalid_argument(
        "devices --watch: expected a time above 0, got '", printable(options.interval), "'");
  }
  if (options.json)
    watch.separator.clear();  // documents one after the other are read as they are
  return watch;
}

// Throws: invalid_argument when the GPU of a rank is not on its host, or no rank is on any.
void check_plan_of(const Inventory& inventory, const Plan& plan, const std::string& path) {
  const RankPlan* lost = plan.ranks.empty() ? nullptr : &plan.ranks[0];
  for (const RankPlan& rank : plan.ranks) {
    const Host* const host = element_with(inventory.hosts, rank.host, &Host::name);
    if (host == nullptr)
      continue;
    lost = has_device(*host, rank.device) ? nullptr : &rank;
    if (lost != nullptr)
      break;
  }
  if (lost == nullptr)
    return;
  throw invalid_argument("--plan ",
                         printable(path),
                         ": expected a plan of the machine that is drawn, got rank ",
                         lost->rank,
                         " on ",
                         printable(lost->device.id()),
                         " of host ",
                         printable(lost->host),
                         ", which it has not; give that machine with --inventory");
}

// The picture may be that of a plan, with the ranks on their GPUs.
void draw(const DevicesOptions& options) {
  check_named_file("--svg", options.svg);
  check_not_read("--svg",
                 options.svg,
                 {{options.inventory, "the machine is read from it"},
                  {options.plan, "the plan is read from it"}});
  std::optional<Plan> plan;
  if (!options.plan.empty())
    plan = plan_from_json(read_named("--plan", [&] { return read_small_file(options.plan); }),
                          options.plan);
  const Inventory inventory = find_inventory(options);
  if (plan)
    check_plan_of(inventory, *plan, options.plan);
  write_named_file(options.svg, draw_svg(inventory, plan ? &*plan : nullptr));
}

// A picture goes to its file, and a watched machine to the terminal until Ctrl-C.
void show(const DevicesOptions& options) {
  if (!options.svg.empty()) {
    draw(options);
  } else if (options.watch) {
    watch(STDOUT_FILENO, [&] { return make_text(options); }, watch_options(options));
  } else {
    write_all(STDOUT_FILENO, make_text(options));
  }
}

// Adds the flags of what is shown, and how often. Returns the option --watch.
CLI::Option* add_output_options(CLI::App& command, DevicesOptions& options) {
  auto* const json =
      command.add_flag("--json", options.json, "Print JSON, which --inventory reads");
  auto* const watch =
      command
          .add_option(
              "--watch", options.interval, "Show them again and again, until Ctrl-C [every second]")
          ->type_name("SECONDS")
          ->expected(0, 1);
  command
      .add_option("--count", options.count, "With --watch: how many times, then end [until Ctrl-C]")
      ->check(whole_number_from(1))
      ->needs(watch)
      ->type_name("N");
  // A picture is one file, so it cannot be watched.
  auto* const svg =
      command
          .add_option("--svg",
                      options.svg,
                      "Draw the machine as a picture into this file instead (SVG) [none]")
          ->excludes(json)
          ->excludes(watch)
          ->type_name("FILE");
  command
      .add_option("--plan",
                  options.plan,
                  "With --svg: draw the ranks of this plan on their GPUs too [none]")
      ->needs(svg)
      ->type_name("FILE");
  return watch;
}

}  // namespace

void add_devices(CLI::App& app) {
  auto* const command =
      app.add_subcommand("devices", "Show this machine's GPUs, their links and its CPU");
  const auto options = std::make_shared<DevicesOptions>();
  auto* const inventory =
      command
          ->add_option("--inventory",
                       options->inventory,
                       "Show the machine in this file instead of this one [this machine]")
          ->type_name("FILE");
  command->add_option("--host", options->host, "With --inventory: show this host only [all]")
      ->type_name("NAME");
  command
      ->add_option("--sysroot",
                   options->sysroot,
                   "Read sysfs from below this folder, a copy of another machine's [/]")
      ->excludes(inventory)
      ->check(CLI::ExistingDirectory)
      ->type_name("DIR");
  const CLI::Option* const watch = add_output_options(*command, *options);
  command->footer(kDevicesExamples);
  command->callback([options, watch] {
    // --watch may be given without its value.
    options->watch = watch->count() > 0;
    show(*options);
  });
}

}  // namespace muster
