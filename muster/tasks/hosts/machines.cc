// This machine is probed by this process, and every other one by the server that is started there.
// All answers become one inventory, whose hosts have the names that the run calls them.
#include "muster/tasks/hosts/machines.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/usage.h"
#include "muster/base/version.h"
#include "muster/device/read_inventory.h"
#include "muster/tasks/hosts/seen_host.h"
#include "muster/tasks/hosts/server.h"

namespace muster {

namespace {

// Whether any alternative of any task is so.
bool any_need(const Tasks& tasks, bool (*is)(const TaskNeed&)) {
  return any_of(tasks, [&](const Task& task) { return any_of(task.needs, is); });
}

// Two names of one machine would have its devices twice. Only GPUs tell machines apart, and of
// these only those with an id of their own.
void check_different(const Inventory& inventory) {
  StringMap hosts;  // by GPU
  for (const Host& host : inventory.hosts) {
    for (const Gpu& gpu : host.gpus) {
      const auto [known, is_new] = hosts.emplace(gpu.uuid.value, host.name);
      const bool has_id = !gpu.uuid.value.empty() && !gpu.uuid.value.starts_with(kNoUniqueId);
      if (has_id && !is_new)
        fail_usage("--hosts: expected each machine once, got GPU ",
                   gpu.uuid.value,
                   " of both ",
                   known->second,
                   " and ",
                   host.name,
                   "; leave one of the names out");
    }
  }
}

// How the server on the machine is reached, and what it is asked.
RemoteHostOptions remote_options(const TaskMachine& machine, const RemoteHello& question) {
  RemoteHello hello = question;
  hello.name = machine.name;
  hello.environment = machine.environment;
  return {.argv = machine.argv,
          .environment = machine.command_environment,
          .hello = std::move(hello),
          .advice = machine.advice};
}

// The host has no more cores than the run may have of it.
void limit_cores(const TaskMachine& machine, Host& host) {
  if (machine.cpus > 0)
    host.num_cores = std::min(host.num_cores, machine.cpus);
}

// All others are asked at the same time, and this machine is probed when they have answered.
TaskMachines several_machines(const TaskMachineList& specs, const RemoteHello& question) {
  if (std::ranges::count_if(specs, &TaskMachine::here) > 1)
    fail_usage("--hosts: expected this machine once, got it by two names; leave one of them out");
  std::vector<RemoteHostOptions> options =
      mapped(specs | std::views::filter([](const TaskMachine& spec) { return !spec.here; }),
             [&](const TaskMachine& spec) { return remote_options(spec, question); });
  RemoteHosts answered = connect_hosts(options);
  auto next = answered.begin();
  TaskMachines machines{.inventory = {.source = "these machines"}};
  for (const TaskMachine& spec : specs) {
    auto connection = spec.here ? nullptr : std::move(*next++);
    Host host = connection ? connection->inventory()->hosts[0]
                           : seen_host(probe_for(question).hosts[0], inherited_masks());
    host.name = spec.name;
    limit_cores(spec, host);
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
  for (const int host : int_indices_of(connections)) {
    if (!connections[host])
      return host;
  }
  return -1;
}

// Each answer costs time on every machine, so that only what these tasks need is asked.
RemoteHello question_for(const Tasks& tasks) {
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

TaskMachines ask_machines(const TaskMachineList& machines, const RemoteHello& question) {
  const bool several = machines.size() > 1 || (machines.size() == 1 && !machines[0].here);
  if (several)
    return several_machines(machines, question);
  TaskMachines all{.inventory = probe_for(question), .masks = inherited_masks()};
  if (!machines.empty()) {
    limit_cores(machines[0], all.inventory.hosts[0]);
    all.slots = {machines[0].slots};
  }
  return all;
}

}  // namespace muster
