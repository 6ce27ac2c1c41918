#include "muster/tasks/hosts/machines.h"

#include <algorithm>
#include <map>

#include "muster/base/strings.h"
#include "muster/base/usage.h"
#include "muster/base/version.h"
#include "muster/device/read_inventory.h"
#include "muster/tasks/hosts/seen_host.h"
#include "muster/tasks/hosts/server.h"

namespace muster {

namespace {

bool any_need(const std::vector<Task>& tasks, bool (*is)(const TaskNeed&)) {
  return std::ranges::any_of(tasks,
                             [&](const Task& task) { return std::ranges::any_of(task.needs, is); });
}

// Two names of one machine would have its devices twice.
void check_different(const Inventory& inventory) {
  std::map<std::string, std::string> hosts;  // by GPU
  for (const Host& host : inventory.hosts) {
    for (const Gpu& gpu : host.gpus) {
      const auto [known, is_new] = hosts.emplace(gpu.uuid.value, host.name);
      if (!is_new && !gpu.uuid.value.empty() && !gpu.uuid.value.starts_with(kNoUniqueId))
        fail_usage(cat("--hosts: expected each machine once, got GPU ",
                       gpu.uuid.value,
                       " of both ",
                       known->second,
                       " and ",
                       host.name,
                       "; leave one of the names out"));
    }
  }
}

TaskMachines several_machines(const std::vector<TaskMachine>& specs, const RemoteHello& question) {
  if (std::ranges::count_if(specs, [](const auto& spec) { return spec.here; }) > 1)
    fail_usage("--hosts: expected this machine once, got it by two names; leave one of them out");
  std::vector<RemoteHostOptions> options;
  for (const TaskMachine& spec : specs) {
    if (spec.here)
      continue;
    RemoteHello hello = question;
    hello.name = spec.name;
    hello.environment = spec.environment;
    options.push_back({.argv = spec.argv,
                       .environment = spec.command_environment,
                       .hello = std::move(hello),
                       .advice = spec.advice});
  }
  std::vector<std::unique_ptr<RemoteHost>> answered = connect_hosts(options);
  auto next = answered.begin();
  TaskMachines machines{.inventory = {.source = "these machines"}};
  for (const TaskMachine& spec : specs) {
    auto connection = spec.here ? nullptr : std::move(*next++);
    Host host = connection ? connection->inventory()->hosts[0]
                           : seen_host(probe_for(question).hosts[0], inherited_masks());
    host.name = spec.name;
    if (spec.cpus > 0)
      host.num_cores = std::min(host.num_cores, spec.cpus);
    machines.inventory.hosts.push_back(std::move(host));
    machines.slots.push_back(spec.slots);
    machines.connections.push_back(std::move(connection));
  }
  check_different(machines.inventory);
  return machines;
}

}  // namespace

int TaskMachines::here() const {
  if (connections.empty())
    return 0;
  const auto found =
      std::ranges::find_if(connections, [](const auto& connection) { return !connection; });
  return found == connections.end() ? -1 : static_cast<int>(found - connections.begin());
}

RemoteHello question_for(const std::vector<Task>& tasks) {
  return {.version = version(),
          .gpus = any_need(tasks, [](const TaskNeed& need) { return need.gpus > 0; }),
          .links = any_need(tasks, [](const TaskNeed& need) { return need.gpus > 1; }),
          .cpu_topology =
              any_need(tasks, [](const TaskNeed& need) { return need.cpus > 0 || need.gpus > 0; }),
          .memory = any_need(tasks, [](const TaskNeed& need) { return need.memory_bytes > 0; })};
}

TaskMachines machines_in_file(const std::string& path) {
  TaskMachines machines{.inventory =
                            read_named("--inventory", [&] { return read_inventory(path); })};
  if (!machines.inventory.simulated)
    machines.masks = inherited_masks();
  return machines;
}

TaskMachines ask_machines(const std::vector<TaskMachine>& machines, const RemoteHello& question) {
  const bool several = machines.size() > 1 || (machines.size() == 1 && !machines[0].here);
  if (several)
    return several_machines(machines, question);
  TaskMachines all{.inventory = probe_for(question), .masks = inherited_masks()};
  if (!machines.empty()) {
    Host& host = all.inventory.hosts[0];
    if (machines[0].cpus > 0)
      host.num_cores = std::min(host.num_cores, machines[0].cpus);
    all.slots = {machines[0].slots};
  }
  return all;
}

}  // namespace muster
