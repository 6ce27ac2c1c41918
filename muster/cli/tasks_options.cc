// Tasks come from a spec file, from --sweep with a command, or from the folder of a run that goes
// on. The settings are kept in the run's folder, so that a run that goes on has them again.
#include "muster/cli/tasks_options.h"

#include "muster/base/contains.h"
#include "muster/base/folders.h"
#include "muster/base/given.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/usage.h"
#include "muster/cli/cluster_flags.h"
#include "muster/cli/host_port.h"
#include "muster/cli/tasks_machines.h"
#include "muster/cli/tasks_sweep.h"
#include "muster/cluster/hostfile.h"
#include "muster/cluster/slurm_nodes.h"
#include "muster/launch/time_limit.h"

namespace muster {

namespace {

// Returns whether the flags name tasks; a run that goes on has its own. Throws: invalid_argument
// for two kinds of tasks.
bool check_tasks(const TasksFlags& flags) {
  const bool has_spec = !flags.spec.empty();
  const bool has_sweep = !flags.sweeps.empty() || !flags.command.empty();
  if (!has_spec && !has_sweep && !flags.resume.empty())
    return false;
  if (has_spec && has_sweep) {
    const std::string sweep =
        flags.sweeps.empty() ? "a command" : cat("--sweep ", printable(flags.sweeps[0]));
    fail_usage("expected a spec file or --sweep … -- CMD, got both (",
               printable(flags.spec),
               " and ",
               sweep,
               "); leave one of them out; a sweep's command comes after --");
  }
  if (has_spec)
    return true;
  if (!flags.sweeps.empty() && flags.command.empty())
    fail_usage(
        "--sweep: expected a command after --, got none; as --sweep lr=0.1,0.01 -- ./train {lr}");
  if (flags.sweeps.empty())
    fail_usage(
        "expected a spec file, or --sweep NAME=VALUES … -- CMD, got neither; as in: muster tasks "
        "sweep.toml");
  return true;
}

// Throws: invalid_argument for flags that say how to reach hosts, if there are none. A run that
// goes on may have hosts of its own.
void check_needs_no_hosts(const TasksFlags& flags) {
  if (!flags.resume.empty())
    return;
  if (!flags.ssh.empty())
    fail_usage("--ssh: expected --hosts or --hostfile beside it, got neither; say where tasks run");
  if (flags.remote_muster.empty())
    return;
  const bool has_nodes = !flags.standalone && slurm_nodes_of_environment();
  if (!has_nodes)
    fail_usage(
        "--remote-muster: expected --hosts, --hostfile or a Slurm allocation beside it, got none; "
        "say where tasks run");
}

// Throws: invalid_argument for flags that contradict --hosts or --hostfile.
void check_beside_hosts(const TasksFlags& flags) {
  if (!flags.inventory.empty())
    fail_usage(
        "--hosts and --inventory: expected one of them, got both; each host tells what it has");
  if (flags.standalone)
    fail_usage(
        "--hosts and --standalone: expected one of them, got both; --standalone is this machine "
        "alone");
}

// Returns --hosts or --hostfile as "a:4,b"; empty: neither.
std::string hosts_setting(const TasksFlags& flags) {
  if (flags.hosts.empty() && flags.hostfile.empty()) {
    check_needs_no_hosts(flags);
    return {};
  }
  check_beside_hosts(flags);
  const HostSpecs hosts = hosts_in(flags.hosts, flags.hostfile);
  const auto text_of = [](const HostSpec& host) {
    return cat(in_brackets(host.name), host.nproc ? cat(":", *host.nproc) : "");
  };
  return join(mapped(hosts, text_of), ",");
}

// Tasks share a machine, so bindings that hand out whole sockets are not for them.
std::optional<NumaBinding> binding_of(const std::string& text) {
  if (text.empty())
    return std::nullopt;
  const NumaBinding binding = parse_numa_binding(text);
  if (is_one_of(binding, NumaBinding::socket, NumaBinding::core_complex))
    fail_usage("--numa-binding: expected none, node or exclusive, got ", text);
  return binding;
}

// A run that goes on does so from the folder in which it began, so paths are kept as absolute ones.
std::string absolute(const std::string& path) {
  return path.empty() ? path : absolute_path(path);
}

// A setting that is not given keeps what the spec file, or the run that goes on, has.
TasksSettings to_settings(const TasksFlags& flags) {
  TasksSettings settings{.cpus = flags.cpus,
                         .max_running = flags.jobs,
                         .hosts = hosts_setting(flags),
                         .ssh = flags.ssh,
                         .remote_muster = flags.remote_muster,
                         .standalone = flags.standalone,
                         .numa_binding = binding_of(flags.numa_binding),
                         .lease = !flags.no_lease,
                         .allow_nan = flags.allow_nan};
  settings.gpus = given(flags.gpus, [](const auto& text) { return Selection(text); });
  settings.inventory = absolute(flags.inventory);
  settings.visibility = given(flags.visibility, parse_visibility);
  // Without either the spec file decides.
  if (flags.fail_fast || flags.keep_going)
    settings.fail_fast = flags.fail_fast;
  return settings;
}

}  // namespace

// Errors come in this order, since a later check may rely on an earlier one.
TasksOptions to_tasks_options(const TasksFlags& flags) {
  TasksOptions options{.run_dir = flags.run_dir,
                       .resume = flags.resume,
                       .find_machines = find_machines,
                       .wait = given_duration(flags.wait, "--wait"),
                       .dry_run = flags.dry_run,
                       .explain = flags.explain,
                       .json = flags.json,
                       .quiet = flags.quiet,
                       .files = {.csv = absolute(flags.csv), .html = absolute(flags.html)}};
  options.files.read = {{absolute(flags.spec), "the tasks are read from it"},
                        {absolute(flags.inventory), "the machine is read from it"},
                        {absolute(flags.hostfile), "the hosts are read from it"}};
  // The time limit is counted back from the grace period, so it is read after that.
  options.shutdown_timeout =
      given_duration(flags.grace, "--shutdown-timeout").value_or(options.shutdown_timeout);
  options.time_limit = parse_time_limit(flags.time_limit, "--time-limit", options.shutdown_timeout);
  if (!flags.resume.empty() && !flags.run_dir.empty())
    fail_usage(
        "--resume and --run-dir: expected one of them, got both; --resume names the run's folder");
  if (!flags.sbatch.empty() && flags.submit.empty())
    fail_usage(
        "--sbatch: expected --submit slurm beside it, got none; add it, or leave --sbatch out");
  check_sweep_flags(flags);
  if (check_tasks(flags)) {
    options.spec = flags.spec;
    if (flags.spec.empty())
      options.sweep = sweep_of(flags);
  }
  options.sweep_needs = need_flags_text(flags);
  options.settings = to_settings(flags);
  return options;
}

// Slurm decides where, when and how tasks run.
void check_submit(const TasksFlags& flags) {
  if (flags.submit != "slurm")
    fail_usage("--submit: expected slurm, got '", printable(flags.submit), "'");
  const char* const devices = "Slurm chooses the devices: say in the spec what tasks need";
  const char* const nodes = "Slurm knows its own nodes";
  const char* const books = "Slurm keeps the books: see RUN_DIR/slurm/jobs.json and sacct";
  const char* const order = "Slurm decides when tasks run: give it a flag of its own with --sbatch";
  const char* const ends =
      "Slurm ends tasks: time_limit in the spec, or a flag of its own with --sbatch";
  struct RefusedFlag {
    const char* name;
    bool given;
    const char* next;  // who decides instead
  };
  const RefusedFlag refused[] = {
      {"--resume", !flags.resume.empty(), "Slurm keeps its own books"},
      {"--gpus", !flags.gpus.empty(), devices},
      {"--cpus", flags.cpus > 0, devices},
      {"--numa-binding", !flags.numa_binding.empty(), devices},
      {"--no-lease", flags.no_lease, devices},
      {"--inventory", !flags.inventory.empty(), nodes},
      {"--hosts", !flags.hosts.empty() || !flags.hostfile.empty(), nodes},
      {"--standalone", flags.standalone, nodes},
      {"--ssh", !flags.ssh.empty(), nodes},
      {"--remote-muster", !flags.remote_muster.empty(), nodes},
      {"--jobs", flags.jobs > 0, order},
      {"--wait", !flags.wait.empty(), order},
      {"--explain", !flags.explain.empty(), "ask squeue why a job waits"},
      {"--fail-fast", flags.fail_fast, ends},
      {"--allow-nan", flags.allow_nan, books},
      {"--time-limit", !flags.time_limit.empty(), ends},
      {"--shutdown-timeout", !flags.grace.empty(), ends},
      {"--json", flags.json, books},
      {"--csv", !flags.csv.empty(), books},
      {"--html", !flags.html.empty(), books},
  };
  if (const RefusedFlag* const flag = element_where(refused, &RefusedFlag::given))
    fail_usage("--submit slurm and ", flag->name, ": expected one of them, got both; ", flag->next);
}

}  // namespace muster
