#include "muster/cli/tasks_machines.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "muster/base/env.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/version.h"
#include "muster/cli/run_options.h"
#include "muster/cli/usage.h"
#include "muster/cluster/agent_task.h"
#include "muster/cluster/hostfile.h"
#include "muster/cluster/meeting.h"
#include "muster/cluster/remote_launch.h"
#include "muster/cluster/slurm_nodes.h"
#include "muster/cluster/ssh_command.h"
#include "muster/device/read_inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/tasks/hosts/seen_host.h"
#include "muster/tasks/hosts/server.h"

namespace muster {

namespace {

// One of several machines.
struct MachineSpec {
  std::string name = {};
  bool here = false;
  int slots = 0;                       // tasks at a time; 0: no limit
  int cpus = 0;                        // that the run may have of it; 0: all
  std::vector<std::string> argv = {};  // starts the server there
  Environment command_environment = own_environment();
  Environment environment = {};  // to be set there
  std::string advice = {};
};

bool any_need(const std::vector<Task>& tasks, bool (*is)(const TaskNeed&)) {
  return std::any_of(tasks.begin(), tasks.end(),
                     [&](const Task& task) { return std::any_of(task.needs.begin(), task.needs.end(), is); });
}

// Asks for no more than the tasks need: every answer takes time.
RemoteHello question_of(const TasksRun& run, bool held) {
  const auto& tasks = run.file.tasks;
  return {
      .version = version(),
      .folder = std::filesystem::current_path().string(),
      .gpus = any_need(tasks, [](const TaskNeed& need) { return need.gpus > 0; }),
      .links = any_need(tasks, [](const TaskNeed& need) { return need.gpus > 1; }),
      .cpu_topology = any_need(tasks, [](const TaskNeed& need) { return need.cpus > 0 || need.gpus > 0; }),
      .topology_or_nothing = !run.setting("numa-binding").empty(),
      .memory = any_need(tasks, [](const TaskNeed& need) { return need.memory_bytes > 0; }),
      .held = held && run.setting("no-lease").empty(),
      .run_id = run.before.head.run_id};
}

// What --ssh and --remote-muster are for, they are for as in `muster run`.
std::vector<MachineSpec> listed_machines(const TasksRun& run) {
  RunFlags flags;
  flags.hosts = run.setting("hosts");
  flags.ssh = run.setting("ssh");
  flags.remote_muster = run.setting("remote-muster");
  const auto remote = to_remote_options(flags);
  std::vector<MachineSpec> machines;
  if (!remote) return machines;
  const std::string program = remote->remote_muster.empty() ? own_program() : remote->remote_muster;
  for (const HostSpec& host : remote->hosts) {
    MachineSpec machine{.name = without_user(host.name), .slots = host.nproc.value_or(0)};
    try {
      machine.here = is_this_machine(machine.name);
    } catch (const Error&) {
      machine.here = false;  // a name that only ssh knows
    }
    machine.argv = ssh_command(remote->ssh, host.name, {program, "tasks", "--serve"});
    machine.environment = environment_to_send(own_environment());
    machine.advice = cat("see that `", join(remote->ssh, " "), " ", host.name, " true` works");
    machines.push_back(std::move(machine));
  }
  return machines;
}

// Nothing where this machine is all that there is.
std::vector<MachineSpec> slurm_machines(const TasksRun& run) {
  const std::string named = run.setting("remote-muster");
  const std::string program = named.empty() ? own_program() : named;
  std::vector<MachineSpec> machines;
  const auto nodes = slurm_nodes_of_environment();
  if (!nodes) {
    if (inside_srun_step() && get_env_int("SLURM_STEP_NUM_TASKS").value_or(1) > 1)
      log(LogLevel::warn,
          "srun has started this more than once, and each runs all tasks by itself; started once, without "
          "srun, `muster tasks` uses all nodes of the allocation");
    return machines;
  }
  for (const SlurmNode& node : *nodes) {
    machines.push_back({.name = node.name,
                        .here = node.here,
                        .cpus = node.cpus,
                        .argv = srun_command(node.name, {program, "tasks", "--serve"}),
                        .command_environment = srun_environment(),
                        .advice = cat("see that `srun --overlap -N1 -n1 -w ", node.name,
                                      " true` works, or say --standalone for this machine alone")});
  }
  return machines;
}

// Two names of one machine would have its devices twice.
void check_different(const Inventory& inventory) {
  std::map<std::string, std::string> hosts;  // by GPU
  for (const Host& host : inventory.hosts) {
    for (const Gpu& gpu : host.gpus) {
      const auto [known, is_new] = hosts.emplace(gpu.uuid.value, host.name);
      if (!is_new && !gpu.uuid.value.empty() && !gpu.uuid.value.starts_with(kNoUniqueId))
        fail_usage(cat("--hosts: expected each machine once, got GPU ", gpu.uuid.value, " of both ",
                       known->second, " and ", host.name, "; leave one of the names out"));
    }
  }
}

TaskMachines several_machines(const RemoteHello& question, const std::vector<MachineSpec>& specs) {
  if (std::count_if(specs.begin(), specs.end(), [](const auto& spec) { return spec.here; }) > 1)
    fail_usage("--hosts: expected this machine once, got it by two names; leave one of them out");
  std::vector<RemoteHostOptions> options;
  for (const MachineSpec& spec : specs) {
    if (spec.here) continue;
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
  for (const MachineSpec& spec : specs) {
    auto connection = spec.here ? nullptr : std::move(*next++);
    Host host = connection ? connection->inventory()->hosts[0]
                           : seen_host(probe_for(question).hosts[0], inherited_masks());
    host.name = spec.name;
    if (spec.cpus > 0) host.num_cores = std::min(host.num_cores, spec.cpus);
    machines.inventory.hosts.push_back(std::move(host));
    machines.slots.push_back(spec.slots);
    machines.connections.push_back(std::move(connection));
  }
  check_different(machines.inventory);
  return machines;
}

}  // namespace

int TaskMachines::here() const {
  if (connections.empty()) return 0;
  const auto found = std::find_if(connections.begin(), connections.end(),
                                  [](const auto& connection) { return !connection; });
  return found == connections.end() ? -1 : static_cast<int>(found - connections.begin());
}

std::string hosts_setting(const TasksFlags& flags) {
  if (flags.hosts.empty() && flags.hostfile.empty()) {
    if (!flags.ssh.empty() && flags.resume.empty() && flags.submit.empty())
      fail_usage("--ssh: expected --hosts or --hostfile beside it, got neither; say where tasks run");
    if (!flags.remote_muster.empty() && flags.resume.empty() &&
        (flags.standalone || !slurm_nodes_of_environment()))
      fail_usage(
          "--remote-muster: expected --hosts, --hostfile or a Slurm allocation beside it, got none; "
          "say where tasks run");
    return {};
  }
  if (!flags.hosts.empty() && !flags.hostfile.empty())
    fail_usage("--hosts and --hostfile: expected one of them, got both");
  if (!flags.inventory.empty())
    fail_usage("--hosts and --inventory: expected one of them, got both; each host tells what it has");
  if (flags.standalone)
    fail_usage(
        "--hosts and --standalone: expected one of them, got both; --standalone is this machine alone");
  std::vector<std::string> texts;
  for (const HostSpec& host : flags.hosts.empty()
                                  ? read_named("--hostfile", [&] { return read_hostfile(flags.hostfile); })
                                  : parse_host_list(flags.hosts, "--hosts")) {
    const bool brackets = host.name.find(':') != std::string::npos;
    texts.push_back(cat(brackets ? "[" : "", host.name, brackets ? "]" : "",
                        host.nproc ? cat(":", *host.nproc) : std::string()));
  }
  return join(texts, ",");
}

TaskMachines machines_of(const TasksRun& run, bool held) {
  if (const std::string file = run.setting("inventory"); !file.empty()) {
    TaskMachines machines{.inventory = read_named("--inventory", [&] { return read_inventory(file); })};
    if (!machines.inventory.simulated) machines.masks = inherited_masks();
    return machines;
  }
  const RemoteHello question = question_of(run, held);
  std::vector<MachineSpec> specs = listed_machines(run);
  if (specs.empty() && run.setting("standalone").empty()) specs = slurm_machines(run);
  if (specs.size() > 1 || (specs.size() == 1 && !specs[0].here)) return several_machines(question, specs);
  TaskMachines machines{.inventory = probe_for(question), .masks = inherited_masks()};
  if (!specs.empty()) {
    Host& host = machines.inventory.hosts[0];
    if (specs[0].cpus > 0) host.num_cores = std::min(host.num_cores, specs[0].cpus);
    machines.slots = {specs[0].slots};
  }
  return machines;
}

// Standard output carries messages: whatever else is printed goes where errors go.
int serve_tasks_of_another() {
  Fd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  Fd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  const Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!in.valid() || !out.valid() || !nothing.valid() || ::dup2(nothing.get(), STDIN_FILENO) < 0 ||
      ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
    fail_errno("--serve: cannot take over standard input and output", errno);
  return serve_tasks(std::move(in), std::move(out));
}

}  // namespace muster
