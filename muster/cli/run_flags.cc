// A flag's help is its documentation: what it does, and in brackets what is done without it. Flags
// are added group by group, and entitle() puts those that were added last under a title. Flags of
// torchrun also have torchrun's variables.
#include "muster/cli/run_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>
#include <string>

#include "muster/cli/run_options.h"
#include "muster/cli/value_flags.h"

namespace muster {

namespace {

// Returns torchrun's name for a flag's variable: PET_NPROC_PER_NODE.
std::string pet_name(const std::string& flag) {
  std::string name = "PET_" + flag.substr(flag.rfind("--") + 2);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::toupper(c));
  });
  return name;
}

template <class T>
void torchrun_option(CLI::App* command,
                     const std::string& flag,
                     T& value,
                     const std::string& type,
                     const std::string& help) {
  command->add_option(flag, value, help)->type_name(type)->envname(pet_name(flag));
}

// Adds a flag without a value that torchrun has too.
void torchrun_flag(CLI::App* command,
                   const std::string& flag,
                   bool& value,
                   const std::string& help) {
  command->add_flag(flag, value, help)->envname(pet_name(flag));
}

// These flags say which devices the ranks get; `muster plan` has them too.
void add_device_flags(CLI::App* command, RunFlags& flags) {
  command
      ->add_option("-n,--nproc-per-node",
                   flags.nproc_per_node,
                   "Number of ranks, or auto, gpu, cpu: one per GPU or CPU slot [auto]")
      ->type_name("N")
      ->envname("PET_NPROC_PER_NODE");
  text_flag(command,
            "--gpus",
            flags.gpus,
            "SEL",
            "GPUs such as 0,2-5 or all",
            "GPUs to use: 0,2-5, !3, GPU-8f3c, free:2, idle, model=A100, mem>=20GiB, … [all]");
  count_flag(command,
             "--gpus-per-rank",
             flags.gpus_per_rank,
             "GPUs of each rank, for programs that drive several in one process; a rank sees its "
             "own alone [1]");
  text_flag(
      command,
      "--policy",
      flags.policy,
      "NAME",
      "a policy's name",
      "Which rank gets which GPU: sequential, list, fastest, memory, topology, spread, pack, numa "
      "or mesh (docs/placement.md) [sequential; list with --map, memory with --rank-memory, mesh "
      "with --mesh]");
  text_flag(command,
            "--map",
            flags.map,
            "LIST",
            "GPU indices such as 3,1,0,2, or @FILE",
            "GPU index of each local rank: 3,1,0,2, or @FILE with such a list [none]");
  command
      ->add_option("--map-command",
                   flags.map_command,
                   "A shell command that prints a list as --map takes it [none]")
      ->type_name("CMD");
  command
      ->add_option("--scores",
                   flags.scores,
                   "Speeds of GPUs for --policy fastest, as JSON: {\"0\": 100, \"1\": 90} [muster "
                   "bench device's]")
      ->type_name("FILE");
  command
      ->add_option("--rank-memory",
                   flags.rank_memory,
                   "Free GPU memory that each local rank needs: 40GiB,20GiB [none]")
      ->type_name("LIST");
  command
      ->add_option("--global-batch",
                   flags.global_batch,
                   "Samples in a step of all ranks together, divided over them in proportion to "
                   "the scores [none]")
      ->type_name("N")
      ->check(whole_number_from(1, std::numeric_limits<int64_t>::max()));
  command
      ->add_option(
          "--mesh",
          flags.mesh,
          "Arrange the ranks as a grid: dp=2,pp=2,tp=2; neighbours on the last axis get the best "
          "links [none]")
      ->type_name("AXES");
  text_flag(
      command,
      "--topology",
      flags.topology,
      "FILE",
      "a file",
      "Number the hosts below one switch one after the other: Slurm's topology.conf, or lines "
      "of HOST and SWITCH/SWITCH [the hosts' own order]");
  command
      ->add_option(
          "--surplus",
          flags.surplus,
          "Ranks for which there is no GPU: error, cpu (CPU slots), drop (left out) or share (GPUs "
          "shared) [error]")
      ->type_name("RULE");
  command
      ->add_option("--visibility",
                   flags.visibility,
                   "GPUs that a rank sees: job (all of the job's, in rank order), own, own-first "
                   "or all [job]")
      ->type_name("WHICH");
  torchrun_flag(command,
                "--virtual-local-rank",
                flags.virtual_local_rank,
                "Give every rank LOCAL_RANK 0, and show it its own GPU alone");
  torchrun_option(
      command,
      "--numa-binding",
      flags.numa_binding,
      "MODE",
      "Bind each rank to CPUs near its GPU: none, node, socket, exclusive or core-complex [none]");
  count_flag(command,
             "--cpu-slots",
             flags.cpu_slots,
             "Number of CPU slots: the ranks where there is no GPU [MUSTER_CPU_SLOTS, or 2]");
  text_flag(command,
            "--inventory",
            flags.inventory,
            "FILE",
            "a file",
            "Plan for the machine in this file instead of this one, as from muster devices --json "
            "(simulated: ranks run on the CPU) [this machine]");
  entitle(command, "Devices");
}

// These flags say which GPUs a job may take from others, and what it does when it cannot.
void add_lease_flags(CLI::App* command, RunFlags& flags) {
  command
      ->add_option(
          "--plan", flags.plan, "Start the ranks of this plan (from muster plan --json) [none]")
      ->type_name("FILE");
  command
      ->add_option(
          "--wait",
          flags.wait,
          "Wait for GPUs that other jobs hold, this long at most [without the flag: not at all]")
      ->type_name("[TIME]")
      ->expected(0, 1)
      ->default_str("forever");
  command->add_flag("--no-lease",
                    flags.no_lease,
                    "Take no lease on the GPUs, so other jobs may be given the same ones");
  command->add_flag("--no-gpu-check",
                    flags.no_gpu_check,
                    "After a failure, keep GPUs that have new errors [they are set aside]");
  entitle(command, "Devices");
}

// These flags say how one command reaches the job's other hosts.
void add_reach_flags(CLI::App* command, RunFlags& flags) {
  command
      ->add_option(
          "--hosts",
          flags.hosts,
          "Hosts, each with its number of ranks: a:4,b:8; over ssh, or of --inventory [this host]")
      ->type_name("LIST");
  // These three are the same as those of `muster tasks`.
  reach_flags(command, flags.hostfile, flags.ssh, flags.remote_muster);
  text_flag(command,
            "--host-discovery",
            flags.host_discovery,
            "CMD",
            "a command",
            "A shell command that prints hosts as --hostfile has them, run again every 2 s (with "
            "--nnodes MIN:MAX) [none]");
  entitle(command, "Several hosts");
}

// These flags say how hosts find each other if each has a command of its own.
void add_rendezvous_flags(CLI::App* command, RunFlags& flags) {
  torchrun_option(command,
                  "--nnodes",
                  flags.nnodes,
                  "N",
                  "Number of hosts, each with a muster run of its own, or MIN:MAX for hosts that "
                  "come and go [1]");
  torchrun_option(command,
                  "--node-rank",
                  flags.node_rank,
                  "N",
                  "This host's number, from 0 [found out under srun and mpirun]");
  torchrun_option(command,
                  "--rdzv-backend",
                  flags.rdzv_backend,
                  "NAME",
                  "How hosts meet: static, c10d or etcd [static]");
  torchrun_option(
      command,
      "--rdzv-endpoint",
      flags.rdzv_endpoint,
      "HOST:PORT",
      "Address at which the hosts meet: node rank 0's as the others reach it, or etcd's, as in "
      "node1:29400 [none]");
  torchrun_option(command,
                  "--rdzv-id",
                  flags.rdzv_id,
                  "ID",
                  "The job's id, the same on every host [a random one]");
  torchrun_option(
      command,
      "--rdzv-conf",
      flags.rdzv_conf,
      "CONF",
      "Timeouts of the rendezvous, in seconds "
      "[join_timeout=600,last_call_timeout=30,keep_alive_interval=5,keep_alive_max_attempt=3]");
  torchrun_option(command,
                  "--local-addr",
                  flags.local_addr,
                  "HOST",
                  "This host's address for the other hosts, as in 10.0.0.5 [that of the route to "
                  "them]");
  text_flag(command,
            "--secret-file",
            flags.secret_file,
            "FILE",
            "a file",
            "File with the secret that the job's hosts share (muster secret makes one) [none]");
  command->add_flag(
      "--no-auth", flags.no_auth, "Let anyone who can reach the rendezvous join the job");
  count_flag(command,
             "--max-host-failures",
             flags.max_host_failures,
             "Failures after which a host is set aside, if enough other hosts are left [3]");
  entitle(command, "Several hosts");
}

// These flags say what is started, and where.
void add_program_flags(CLI::App* command, RunFlags& flags) {
  torchrun_flag(
      command, "-m,--module", flags.module, "Run PROGRAM as a Python module, as python -m does");
  torchrun_flag(
      command, "--run-path", flags.run_path, "PROGRAM is a Python script, whatever its name");
  torchrun_flag(command,
                "--no-python",
                flags.no_python,
                "Execute PROGRAM itself, also where its name ends in .py");
  text_flag(command,
            "--workdir",
            flags.work_dir,
            "DIR",
            "a folder",
            "Working directory of the ranks [this one]");
  repeated_flag(command,
                "--env",
                flags.env,
                "NAME=VALUE",
                "Set an environment variable of the ranks, or pass NAME on to other hosts, as in "
                "OMP_NUM_THREADS=4; may be repeated [none]")
      ->allow_extra_args();  // CLI11 then takes "[A=1,B=2]" for two values
  torchrun_option(command,
                  "--role",
                  flags.role,
                  "NAME",
                  "Value of ROLE_NAME in the ranks' environment, as in trainer [default]");
  text_flag(command,
            "--run-dir",
            flags.run_dir,
            "DIR",
            "a folder",
            "The run's folder, for plan, logs and reports [runs/<id>]");
  torchrun_option(command,
                  "--master-addr",
                  flags.master_addr,
                  "HOST",
                  "Host on which rank 0 listens [localhost]");
  torchrun_option(command,
                  "--master-port",
                  flags.master_port,
                  "PORT",
                  "Port on which rank 0 listens [a free one]");
  entitle(command, "The program");
}

// These flags say what ends a job, and what happens then.
void add_failure_flags(CLI::App* command, RunFlags& flags) {
  text_flag(
      command,
      "--timeout",
      flags.timeout,
      "TIME",
      "a time such as 90m, or slurm",
      "Stop the job after this time, such as 90m; its exit code is then 124, or 75 if all ranks "
      "have saved. "
      "slurm: early enough before Slurm's job ends; slurm-10m: ten minutes before it ends [none]");
  torchrun_option(
      command,
      "--max-restarts",
      flags.max_restarts,
      "N",
      "How often all ranks are started again after a failure [0; with --on-failure replace 3]");
  text_flag(command,
            "--on-failure",
            flags.on_failure,
            "WHAT",
            "end, continue or replace",
            "What to do when a rank fails: end (end all ranks, and start them again if "
            "--max-restarts allows it), replace (start that rank again; needs muster::run) or "
            "continue (keep running without it) [end]");
  text_flag(command,
            "--collective-timeout",
            flags.collective_timeout,
            "TIME",
            "a time such as 10m",
            "How long a collective of muster's process groups waits for a rank, such as 10m [30m]");
  text_flag(
      command,
      "--stopped-timeout",
      flags.stopped_timeout,
      "TIME",
      "a time such as 1m",
      "End a rank that has been stopped (SIGSTOP) this long, such as 1m [never: it is only named]");
  torchrun_option(command,
                  "--shutdown-timeout",
                  flags.shutdown_timeout,
                  "TIME",
                  "Grace period between SIGTERM and SIGKILL [30s]");
  torchrun_option(command,
                  "--signals-to-handle",
                  flags.signals_to_handle,
                  "LIST",
                  "Signals that end the job [SIGTERM,SIGINT,SIGHUP,SIGQUIT]");
  entitle(command, "Limits and failures");
}

// These flags say what is shown, and where the ranks' output goes.
void add_output_flags(CLI::App* command, RunFlags& flags) {
  command->add_flag("--dry-run", flags.dry_run, "Print the plan and start nothing");
  command->add_flag("--json", flags.json, "Print the plan as JSON");
  command->add_flag("-q,--quiet",
                    flags.quiet,
                    "Print no placement table and no summary of the time; warnings stay");
  command->add_flag("--no-collapse",
                    flags.no_collapse,
                    "On a terminal, print the same line of several ranks for each, not once as "
                    "\"[0-7] line ×8\"");
  // "{1}" is the value of a flag that is given without one.
  command->add_flag("--trace{1}",
                    flags.trace,
                    "Write a timeline of what each rank does to trace.json in the run's folder;\n"
                    "--trace=operators adds LibTorch's operators of steps 3 to 7, and GPU kernels");
  torchrun_option(command,
                  "-r,--redirects",
                  flags.redirects,
                  "WHAT",
                  "Write to files instead of the console: 0 nothing, 1 standard output, 2 standard "
                  "error, 3 both; 0:1,1:2 for each local rank [0]");
  torchrun_option(
      command, "-t,--tee", flags.tee, "WHAT", "Write to files and the console: as --redirects [0]");
  torchrun_option(command,
                  "--log-dir",
                  flags.log_dir,
                  "DIR",
                  "Folder for the ranks' logs [logs/ in the run's folder]");
  torchrun_option(
      command,
      "--log-line-prefix-template",
      flags.log_line_prefix_template,
      "TEXT",
      "What stands before each line; may have ${rank}, ${local_rank}, ${role_name}, ${hostname} "
      "[the rank in brackets]");
  torchrun_option(command,
                  "--local-ranks-filter",
                  flags.local_ranks_filter,
                  "LIST",
                  "Local ranks whose output is shown: 0,2 [all]");
  entitle(command, "Output");
}

// Scripts that were written for torchrun pass these.
void add_flags_without_effect(CLI::App* command, RunFlags& flags) {
  torchrun_flag(
      command, "--standalone", flags.standalone, "One host and a free port, which is the default");
  torchrun_option(command,
                  "--monitor-interval",
                  flags.monitor_interval,
                  "S",
                  "Accepted, no effect: deaths are seen at once");
  torchrun_option(command,
                  "--start-method",
                  flags.start_method,
                  "NAME",
                  "Accepted, no effect: programs are executed");
  torchrun_option(command,
                  "--duplicate-stdout-filters",
                  flags.duplicate_stdout_filters,
                  "LIST",
                  "Accepted, no effect: --tee writes every line to files");
  torchrun_option(command,
                  "--duplicate-stderr-filters",
                  flags.duplicate_stderr_filters,
                  "LIST",
                  "Accepted, no effect: --tee writes every line to files");
  torchrun_option(command,
                  "--logs-specs",
                  flags.logs_specs,
                  "NAME",
                  "Only `default` is accepted: muster has none of torchrun's plug-ins");
  torchrun_option(command,
                  "--event-log-handler",
                  flags.event_log_handler,
                  "NAME",
                  "Only `null` is accepted: muster has none of torchrun's plug-ins");
  torchrun_option(command,
                  "--print-completion",
                  flags.print_completion,
                  "SHELL",
                  "Refused; see muster completion");
  entitle(command, "Accepted for compatibility with torchrun");
}

// use_config_file() takes the flag off the command line before CLI11 sees it; here it is for
// --help.
void add_config_flag(CLI::App* command) {
  command
      ->add_option_function<std::string>(
          "--config",
          [](const std::string&) {},
          "Read flags from this TOML file, its keys in no table but [env]; of several files a "
          "later one wins, and those typed here over all [none]")
      ->type_name("FILE");
}

}  // namespace

// The groups stand in --help in this order.
void add_run_flags(CLI::App* command, RunFlags& flags) {
  add_device_flags(command, flags);
  add_lease_flags(command, flags);
  add_config_flag(command);
  add_program_flags(command, flags);
  add_failure_flags(command, flags);
  add_output_flags(command, flags);
  add_reach_flags(command, flags);
  add_rendezvous_flags(command, flags);
  add_flags_without_effect(command, flags);
}

// A plan starts nothing, so it takes only the flags that place ranks.
void add_plan_flags(CLI::App* command, RunFlags& flags) {
  add_config_flag(command);
  command->add_flag("--json", flags.json, "Print the plan as JSON");
  command->add_option("--svg", flags.svg, "Draw the plan as a picture into this file (SVG) [none]")
      ->type_name("FILE");
  entitle(command, "The plan");
  add_device_flags(command, flags);
  add_reach_flags(command, flags);
}

}  // namespace muster
