// A machine is a command that starts `muster tasks --serve` there. Whether ssh or srun runs it
// makes no difference to the run.
#include "muster/cli/tasks_machines.h"

#include <utility>

#include "muster/base/env_count.h"
#include "muster/base/log.h"
#include "muster/base/own_program.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/cli/cluster_flags.h"
#include "muster/cli/run_options.h"
#include "muster/cluster/agent_spec.h"
#include "muster/cluster/host_rendezvous.h"
#include "muster/cluster/hostfile.h"
#include "muster/cluster/remote_launch.h"
#include "muster/cluster/slurm_nodes.h"
#include "muster/cluster/ssh_command.h"
#include "muster/launch/given_gpus.h"

namespace muster {

namespace {

// Each machine is a command that starts `muster tasks --serve` there, over ssh or srun. --ssh and
// --remote-muster mean the same as in `muster run`.
TaskMachineList listed_machines(const TasksSettings& settings) {
  // The flags of `muster run` are filled in, so that both read hosts alike.
  RunFlags flags;
  flags.hosts = settings.hosts;
  flags.ssh = settings.ssh;
  flags.remote_muster = settings.remote_muster;
  const auto remote = to_remote_options(flags);
  TaskMachineList machines;
  if (!remote)
    return machines;
  const auto program = text_or(remote->remote_muster, own_program());
  for (const HostSpec& host : remote->hosts) {
    TaskMachine machine{.name = without_user(host.name), .slots = host.nproc.value_or(0)};
    try {
      machine.here = is_this_machine(machine.name);
    } catch (const Error&) {
      machine.here = false;  // only ssh knows the name
    }
    machine.command_environment = own_environment();
    machine.argv = ssh_command(remote->ssh, host.name, {program, "tasks", "--serve"});
    machine.environment = environment_to_send(own_environment());
    machine.advice = advice_for_ssh(remote->ssh, host.name);
    machines.push_back(std::move(machine));
  }
  return machines;
}

// Returns the nodes of a Slurm allocation; none if this machine is all that there is.
TaskMachineList slurm_machines(const TasksSettings& settings) {
  const auto program = text_or(settings.remote_muster, own_program());
  TaskMachineList machines;
  const auto nodes = slurm_nodes_of_environment();
  if (!nodes) {
    const int copies = get_env_count("SLURM_STEP_NUM_TASKS").value_or(1);
    if (inside_srun_step() && copies > 1)
      log_warning(
          "srun has started `muster tasks` more than once, and each of them runs all tasks; start "
          "it once, without srun: it then uses all nodes of the allocation");
    return machines;
  }
  Environment environment = srun_environment();
  forget_given_gpus(environment);  // those of this node
  for (const SlurmNode& node : *nodes) {
    machines.push_back({.name = node.name,
                        .here = node.here,
                        .cpus = node.cpus,
                        .argv = srun_command(node, {program, "tasks", "--serve"}),
                        .command_environment = environment,
                        .advice = cat("check that `srun --overlap -N1 -n1 -w ",
                                      node.name,
                                      " true` works, or say --standalone for this machine alone")});
  }
  return machines;
}

}  // namespace

// Hosts that are named come before the nodes of an allocation.
TaskMachineList find_machines(const TasksSettings& settings) {
  TaskMachineList machines = listed_machines(settings);
  if (machines.empty() && !settings.standalone)
    machines = slurm_machines(settings);
  return machines;
}

}  // namespace muster
