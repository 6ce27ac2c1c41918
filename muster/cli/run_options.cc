// Flags become options in groups: the request for devices, where rank 0 listens, what the ranks are
// told, what is executed. How a value is written is checked here, and what it may be by
// check_launch(), for programs that start themselves too. Both throw errors that name the flag, so
// that nothing has been started when a flag is wrong.
#include "muster/cli/run_options.h"

#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/given.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/named_file.h"
#include "muster/base/shown_text.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"
#include "muster/cli/cluster_flags.h"
#include "muster/cli/host_port.h"
#include "muster/launch/check_launch.h"
#include "muster/launch/lease_plan.h"
#include "muster/launch/score_file.h"
#include "muster/launch/time_limit.h"
#include "muster/supervise/child.h"
#include "muster/supervise/command_output.h"

namespace muster {

namespace {

// Throws: invalid_argument naming the flag.
int ranks_in(const std::string& text, const std::string& flag, const std::string& expected) {
  const auto value = parse_number(text, 1, kMostRanksOfHost);
  if (!value)
    throw bad_flag(flag, expected, text);
  return *value;
}

// What is wrong in a list: of a long one the piece, by its place, and how the list begins.
std::string wrong_piece(const std::string& text, std::string_view piece, size_t place) {
  constexpr size_t kShort = 80;
  if (text.size() <= kShort)
    return text;
  return cat(shown_text(piece, kShort), "' at place ", place, " in '", shown_text(text, kShort));
}

// Throws: invalid_argument naming the flag, also for a text without any number.
Ints parse_ranks(const std::string& text,
                 const std::string& flag,
                 const std::string& expected,
                 const std::string& next = "") {
  Ints numbers;
  for (const auto& piece : split(text, ',')) {
    const auto value = parse_number(trim(piece), 0, kMostRanksOfHost);
    if (!value)
      throw bad_flag(flag, expected, wrong_piece(text, piece, numbers.size() + 1), next);
    numbers.push_back(*value);
  }
  return numbers;
}

// Blanks and line ends separate numbers too: "3 1\n0 2" is "3,1,0,2".
std::string joined_by_commas(const std::string& text) {
  std::string joined;
  for (const char c : std::string(trim(text))) {
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!blank || (!joined.empty() && joined.back() != ','))
      joined += blank ? ',' : c;
  }
  return joined;
}

// Reads --map: "3,1,0,2", or "@FILE" with such a list. An error in a file names the file.
Ints parse_map(const std::string& text) {
  const std::string expected = "GPU indices by local rank as in 3,1,0,2";
  if (!text.starts_with('@')) {
    const bool is_file = path_exists(text);  // a long list is no file's name
    const auto next = is_file ? cat("the file of that name is --map @", text) : "";
    return parse_ranks(text, "--map", cat(expected, ", or @FILE"), next);
  }
  const std::string file = read_named("--map", [&] { return read_small_file(text.substr(1)); });
  const auto list = joined_by_commas(std::string(without_byte_order_mark(file)));
  return parse_ranks(list, cat("--map ", shown_text(text)), expected);
}

// split() makes one empty piece of an empty text.
Strings pieces(const std::string& text) {
  return text.empty() ? Strings{} : split(text, ',');
}

// What a command may read. It stands in a group of its own, so a terminal would stop it.
int input_of_command() {
  return ::isatty(STDIN_FILENO) == 1 ? -1 : STDIN_FILENO;
}

// Returns a function that asks the command for a list, as --map takes it. The command is run once
// for the same question: the plan may be made again, and its answers must not differ.
auto map_of_command(const std::string& command) {
  const auto answers = std::make_shared<std::map<Environment, Ints>>();
  return [command, answers](const Host& host, const Ints& gpus, std::optional<int> num_ranks) {
    const Environment told = {{"MUSTER_MAP_HOST", host.name},
                              {"MUSTER_MAP_GPUS", join(gpus, ",")},
                              {"MUSTER_MAP_RANKS", text_of(num_ranks)}};
    if (const auto known = answers->find(told); known != answers->end())
      return known->second;
    const auto answer =
        output_of_command(command, "--map-command", told, kAnswerOfCommand, input_of_command());
    return answers
        ->emplace(told,
                  parse_ranks(joined_by_commas(answer),
                              "--map-command",
                              "a command that prints GPU indices as in 3,1,0,2"))
        .first->second;
  };
}

// Throws: invalid_argument for values of torchrun's flags that would have an effect under torchrun,
// and have none here.
void check_accepted(const RunFlags& flags) {
  if (flags.event_log_handler != "null") {
    throw bad_flag("--event-log-handler",
                   "null",
                   flags.event_log_handler,
                   "torchrun's event handlers are Python plug-ins");
  }
  if (!flags.print_completion.empty()) {
    throw bad_flag("--print-completion",
                   "none",
                   flags.print_completion,
                   "for muster's own flags: muster completion SHELL");
  }
  if (!flags.logs_specs.empty() && flags.logs_specs != "default") {
    throw bad_flag("--logs-specs",
                   "default",
                   flags.logs_specs,
                   "torchrun's are Python plug-ins; see --log-dir, --redirects and --tee");
  }
  if (flags.start_method != "spawn" && flags.start_method != "fork" &&
      flags.start_method != "forkserver") {
    throw bad_flag(
        "--start-method", "spawn, fork or forkserver (without effect here)", flags.start_method);
  }
  if (flags.monitor_interval < 0) {
    throw bad_flag("--monitor-interval", "0 or more seconds", cat(flags.monitor_interval));
  }
}

// Sets where rank 0 listens, which is all that is left of a rendezvous on one host. On several
// hosts the coordinator decides that.
void set_master(const RunFlags& flags, bool several_hosts, LaunchOptions& options) {
  options.run_id = flags.rdzv_id == "none" ? "" : flags.rdzv_id;
  if (flags.master_port && (*flags.master_port < 1 || *flags.master_port > 65535)) {
    throw bad_flag("--master-port",
                   "a port from 1 to 65535",
                   cat(*flags.master_port),
                   "leave it out to have a free one chosen");
  }
  if (several_hosts) {
    options.run_id = flags.rdzv_id;
    return;
  }
  // Rank 0 then listens on a free port.
  if (flags.standalone || flags.rdzv_backend != "static")
    return;
  if (!flags.rdzv_endpoint.empty()) {
    const HostPort endpoint = parse_host_port(flags.rdzv_endpoint, "--rdzv-endpoint");
    options.master_addr = endpoint.host;
    options.master_port = endpoint.port.value_or(0);
  } else {
    options.master_addr = flags.master_addr;
    if (!flags.master_port)
      return;
    options.master_port = *flags.master_port;
    if (options.master_addr.empty())
      options.master_addr = "127.0.0.1";
  }
  options.run_id = flags.rdzv_id;
}

// Sets how many ranks there are, and on which kind of device. Without a number there is one rank
// for each device.
void set_num_ranks(const std::string& nproc, Request& request) {
  const auto expected = cat("a number from 1 to ", kMostRanksOfHost, ", auto, cpu or gpu");
  request.cpu_only = nproc == "cpu";
  request.gpu_only = nproc == "gpu";
  const bool is_auto = nproc.empty() || nproc == "auto";
  if (is_auto || request.cpu_only || request.gpu_only)
    return;
  if (nproc == "xpu")
    throw bad_flag("--nproc-per-node",
                   expected,
                   nproc,
                   "muster looks for GPUs of NVIDIA and AMD, not of Intel");
  request.nproc_per_node = ranks_in(nproc, "--nproc-per-node", expected);
}

// Sets which GPU each local rank gets, if the user says it.
void set_map(const RunFlags& flags, Request& request) {
  if (!flags.map.empty())
    request.map = parse_map(flags.map);
  if (!flags.map.empty() && !flags.map_command.empty())
    throw bad_flag("--map", "one of --map and --map-command", flags.map, "leave one out");
  if (!flags.map_command.empty())
    request.map_of = map_of_command(flags.map_command);
}

// With --inventory, --hosts and --hostfile choose among the hosts of the file.
void set_simulated_hosts(const RunFlags& flags, Request& request) {
  const bool chooses_hosts = !flags.hosts.empty() || !flags.hostfile.empty();
  if (!chooses_hosts || flags.inventory.empty())
    return;
  request.hosts = mapped(listed_hosts(flags), [](const HostSpec& host) {
    return HostRequest{.name = host.name, .nproc = host.nproc};
  });
}

// Without the flag, --virtual-local-rank decides.
void set_visibility(const RunFlags& flags, Request& request) {
  if (flags.visibility.empty())
    return;
  if (flags.virtual_local_rank && flags.visibility != "own") {
    throw bad_flag("--virtual-local-rank",
                   "--visibility own, which it implies",
                   flags.visibility,
                   "leave one of them out");
  }
  request.visibility = parse_visibility(flags.visibility);
}

// The request is what the planner is asked for.
void set_request(const RunFlags& flags, Request& request) {
  set_num_ranks(flags.nproc_per_node, request);
  request.gpus = flags.gpus;
  request.gpus_per_rank = flags.gpus_per_rank;
  request.policy = flags.policy;
  set_map(flags, request);
  if (!flags.scores.empty())
    request.scores = read_named("--scores", [&] { return read_scores(flags.scores); });
  request.rank_memory_bytes = mapped(pieces(flags.rank_memory), [](const auto& size) {
    return parse_bytes(size, "--rank-memory");
  });
  set_simulated_hosts(flags, request);
  if (!flags.mesh.empty())
    request.mesh = parse_axes(flags.mesh);
  request.switches = flags.switches;
  request.global_batch = flags.global_batch;
  request.numa_binding = parse_numa_binding(flags.numa_binding);
  request.surplus = parse_surplus(flags.surplus);
  set_visibility(flags, request);
}

// Returns the number of a signal that a process can handle. Throws: invalid_argument.
int signal_named(const std::string& name) {
  for (int number = 1; number <= SIGSYS; ++number) {
    if (!is_one_of(number, SIGKILL, SIGSTOP) && signal_name(number) == name)
      return number;
  }
  throw bad_flag("--signals-to-handle", "signal names as in SIGTERM,SIGINT", name);
}

Ints parse_signals(const std::string& text) {
  return mapped(split(text, ','),
                [](const auto& piece) { return signal_named(std::string(trim(piece))); });
}

// Reads --env: NAME=VALUE, or NAME for a variable that is already set here and is to be passed to
// the ranks of other hosts too. check_launch() looks at the names.
Environment parse_env(const Strings& settings) {
  Environment variables;
  for (const auto& setting : settings) {
    const size_t equals = setting.find('=');
    const auto name = setting.substr(0, equals);
    if (equals != npos) {
      variables[name] = setting.substr(equals + 1);
    } else if (const auto value = get_env(name.c_str())) {
      variables[name] = *value;
    } else {
      throw bad_flag("--env", "NAME=VALUE, or the name of a variable that is set", name);
    }
  }
  return variables;
}

// The flag comes before torchrun's variable.
milliseconds shutdown_timeout(const RunFlags& flags) {
  if (!flags.shutdown_timeout.empty())
    return parse_duration(flags.shutdown_timeout, "--shutdown-timeout");
  const auto inherited = get_env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  return inherited ? parse_duration(*inherited, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
                   : LaunchOptions{}.shutdown_timeout;
}

// Throws: SpawnError with the exit code of a shell if the script cannot be read. Python's own error
// would come from every rank.
void check_readable(const std::string& script) {
  if (::access(script.c_str(), R_OK) == 0)
    return;
  const int error = errno;
  const bool is_missing = is_one_of(error, ENOENT, ENOTDIR);
  throw SpawnError(
      is_missing ? 127 : 126,
      cat("cannot start '", printable(script), "': ", std::strerror(error), "; correct the path"));
}

// torchrun runs any PROGRAM by Python; muster only what is named like a script, unless it is told.
bool is_python_script(const RunFlags& flags, const Strings& program) {
  if (program.empty() || flags.no_python)
    return false;
  return flags.run_path || program[0].ends_with(".py");
}

// Returns what is executed for PROGRAM: Python for scripts and modules, otherwise the program
// itself. Paths are meant from the current folder, also where the ranks run in another one.
Strings command_of(const RunFlags& flags, Strings program) {
  if (flags.module && flags.no_python) {
    throw invalid_argument(
        "--module and --no-python: expected one of them, got both; leave one out");
  }
  const bool is_script = is_python_script(flags, program);
  if (!flags.module && !is_script)
    return program;
  if (!flags.module)
    check_readable(program[0]);
  // Python writes its output unbuffered, so that lines come when they are printed.
  Strings command = {get_env("PYTHON_EXEC").value_or("python3"), "-u"};
  if (!flags.work_dir.empty()) {
    if (is_script)
      program[0] = absolute_path(program[0]);
    if (contains(command[0], '/'))
      command[0] = absolute_path(command[0]);
  }
  if (flags.module)
    command.emplace_back("-m");
  append_all(command, program);
  return command;
}

// Each of several programs says how many ranks it has, and the plan is for all of them together.
void add_ranks_of_programs(const RunFlags& flags,
                           const MorePrograms& more,
                           LaunchOptions& options) {
  if (more.empty())
    return;
  const std::string expected =
      "a number of ranks for each program (muster run -n 1 ./server : -n 4 ./worker)";
  int num_ranks = ranks_in(flags.nproc_per_node, "--nproc-per-node", expected);
  for (const MoreProgram& program : more) {
    const int count = ranks_in(program.nproc, "--nproc-per-node", expected);
    options.more_programs.push_back({.num_ranks = count, .role = program.role});
    num_ranks += count;
  }
  if (options.request.surplus == Surplus::drop) {
    throw bad_flag("--surplus", "no ranks left out where several programs have theirs", "drop");
  }
  options.request.nproc_per_node = num_ranks;
}

void add_programs(const RunFlags& flags, const MorePrograms& more, LaunchOptions& options) {
  add_ranks_of_programs(flags, more, options);
  for (const size_t i : indices_of(more))
    options.more_programs[i].argv = command_of(flags, more[i].program);
}

// What is to happen when a rank fails. A rank's own MUSTER_ON_FAILURE speaks of the job around
// this one, and is not asked.
FailurePolicy failure_policy(const RunFlags& flags, bool several_hosts) {
  const bool inside_a_rank = get_env("MUSTER_LOCAL_RANK").has_value();
  std::optional<FailurePolicy> policy = FailurePolicy::end;
  if (!flags.on_failure.empty())
    policy = failure_policy_of(flags.on_failure);
  else if (!inside_a_rank)
    policy = failure_policy_from_environment();
  if (!policy)
    throw bad_flag("--on-failure", "end, continue or replace", flags.on_failure);
  if (policy == FailurePolicy::go_on && several_hosts)
    throw invalid_argument(
        "--on-failure continue: expected a job on one host, got one on several; leave it out");
  return *policy;
}

bool is_time(const std::string& text) {
  try {
    parse_duration(text, "");
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool is_program(const std::string& name) {
  try {
    find_program(name, get_env("PATH").value_or(""));
    return true;
  } catch (const SpawnError&) {
    return false;
  }
}

// Throws: invalid_argument for "--wait 1s PROGRAM", where "1s" would be the program.
void check_time_of_wait(const RunFlags& flags, const Strings& program) {
  const bool is_alone = flags.wait == "forever" && program.size() > 1;
  if (is_alone && is_time(program[0]) && !is_program(program[0]))
    throw bad_flag("--wait",
                   "its time behind '=', since it may stand alone",
                   cat("--wait ", program[0]),
                   cat("write --wait=", program[0]));
}

// "forever" is what CLI11 gives for the flag without a value.
void set_wait(const RunFlags& flags, LaunchOptions& options) {
  if (!flags.wait.empty())
    options.wait = flags.wait == "forever" ? kWaitForever : parse_duration(flags.wait, "--wait");
}

// Throws: invalid_argument where the picture would take the place of a file that the plan is made
// of. A --map of "@FILE" is read from a file.
void check_picture_file(const RunFlags& flags) {
  const std::string map_file = flags.map.starts_with('@') ? flags.map.substr(1) : "";
  std::vector<ReadFile> read = {{flags.inventory, "the machine is read from it"},
                                {flags.scores, "the scores are read from it"},
                                {flags.topology, "the network is read from it"},
                                {map_file, "the map is read from it"},
                                {flags.hostfile, "the hosts are read from it"}};
  for (const auto& file : flags.config_files)
    read.push_back({file, "the flags are read from it"});
  check_not_read("--svg", flags.svg, read);
}

// What the plan of --plan has decided already is found by check_launch(), but for the hosts, which
// are not asked for by the request.
void set_plan(const RunFlags& flags, LaunchOptions& options) {
  options.plan = flags.plan;
  options.svg = flags.svg;
  check_picture_file(flags);
  if (!flags.plan.empty() && !flags.hosts.empty())
    throw bad_flag("--plan", "no --hosts beside it", flags.hosts, "the plan says all that");
}

}  // namespace

// The checks come in the order of these lines, so the first wrong flag is the one that is told.
LaunchOptions to_launch_options(const RunFlags& flags, Strings program, const MorePrograms& more) {
  const bool several_hosts = to_cluster_options(flags).has_value();
  check_accepted(flags);
  LaunchOptions options;
  set_request(flags, options.request);
  set_plan(flags, options);
  options.lease = !flags.no_lease;
  options.looks_at_gpus = !flags.no_gpu_check;
  check_time_of_wait(flags, program);
  set_wait(flags, options);
  set_master(flags, several_hosts, options);
  options.inventory = flags.inventory;
  options.cpu_slots = flags.cpu_slots;
  options.role = flags.role;
  options.stop_signals = parse_signals(flags.signals_to_handle);
  options.shutdown_timeout = shutdown_timeout(flags);
  options.run_dir = flags.run_dir;
  options.work_dir = flags.work_dir;
  options.extra_env = parse_env(flags.env);
  options.time_limit = parse_time_limit(flags.timeout, "--timeout", options.shutdown_timeout);
  options.limit_has_begun = flags.timeout.starts_with("slurm");
  options.stopped_timeout = given_duration(flags.stopped_timeout, "--stopped-timeout");
  set_failure_policy(failure_policy(flags, several_hosts), flags.max_restarts, options);
  set_collective_timeout(given_duration(flags.collective_timeout, "--collective-timeout"), options);
  if (!flags.trace.empty())
    options.extra_env["MUSTER_TRACE"] = flags.trace;
  options.log_dir = flags.log_dir;
  options.redirects = flags.redirects;
  options.tee = flags.tee;
  if (!flags.local_ranks_filter.empty())
    options.local_ranks_filter =
        parse_ranks(flags.local_ranks_filter, "--local-ranks-filter", "local ranks as in 0,1,2");
  options.line_prefix = text_or(flags.log_line_prefix_template,
                                get_env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or(""));
  options.dry_run = flags.dry_run;
  options.json = flags.json;
  options.quiet = flags.quiet;
  options.collapse = !flags.no_collapse;
  options.virtual_local_rank = flags.virtual_local_rank;
  if (flags.dry_run) {
    add_ranks_of_programs(flags, more, options);
    check_launch(options);
    return options;
  }
  if (program.empty()) {
    throw invalid_argument(
        "expected PROGRAM after the flags, got none; as in: muster run ./train --epochs 3");
  }
  options.argv = command_of(flags, std::move(program));
  add_programs(flags, more, options);
  check_launch(options);
  return options;
}

}  // namespace muster
