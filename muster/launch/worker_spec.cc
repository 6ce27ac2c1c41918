#include "muster/launch/worker_spec.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

// Left over from a launcher around this one: they speak of another rank.
constexpr const char* kOthersVariables[] = {
    "MUSTER_DEVICE",
    "MUSTER_PLAN",
    "MUSTER_STORE",
    "MUSTER_SECRET_FD",
    "MUSTER_RUN_DIR",
    "MUSTER_LOCAL_RANK",
    "MUSTER_ATTEMPT",
    "MUSTER_SIMULATED",
    "MUSTER_LEASE_FD",
    "MUSTER_TTY",
    "MUSTER_SECRET_FILE",
    "MUSTER_MARK",
    "MUSTER_CARD",
    "MUSTER_AGENT_STORE",
    "MUSTER_LAUNCH",
};

std::string value_or(const Environment& environment, const char* name, const char* otherwise) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? otherwise : found->second;
}

std::string signal_list(const std::vector<int>& signals) {
  std::vector<std::string> names;
  names.reserve(signals.size());
  for (const int signal : signals)
    names.push_back(signal_name(signal));
  return join(names, ",");
}

// A rank that sees its own GPU first finds it as ordinal 0, so scripts that use LOCAL_RANK as the
// ordinal must find 0 there. MUSTER_LOCAL_RANK keeps the true one. A process that drives several
// GPUs counts them itself.
bool sees_own_gpu_first(const Plan& plan, const RankPlan& rank) {
  return rank.device.kind == DeviceAssignment::Kind::cuda && rank.more_devices.empty() &&
         plan.visibility != Visibility::all && rank.device.ordinal.value == 0;
}

// What a rank runs, and its place among the ranks of the same role.
struct RankProgram {
  std::vector<std::string> argv;
  std::string path;
  std::string role;
  int role_rank = 0;
  int role_world_size = 0;
};

// The program of each rank: -1 the first, else an index of more_programs.
std::vector<int> programs_of_ranks(const LaunchOptions& options, size_t world_size) {
  std::vector<int> programs;
  for (size_t i = 0; i < options.more_programs.size(); ++i) {
    programs.insert(programs.end(),
                    static_cast<size_t>(options.more_programs[i].num_ranks),
                    static_cast<int>(i));
  }
  if (programs.size() + (options.more_programs.empty() ? 0 : 1) > world_size) {
    throw Error(ErrorCode::invalid_argument,
                cat("launch: expected more than ",
                    programs.size(),
                    " ranks, for ",
                    options.more_programs.size() + 1,
                    " programs, got ",
                    world_size));
  }
  programs.insert(programs.begin(), world_size - programs.size(), -1);
  return programs;
}

std::vector<RankProgram> rank_programs(const LaunchOptions& options,
                                       const JobFacts& job,
                                       size_t world_size) {
  std::vector<RankProgram> all;
  std::map<std::string, int> ranks_of_role;
  for (const int program : programs_of_ranks(options, world_size)) {
    const auto more = static_cast<size_t>(std::max(program, 0));
    RankProgram rank =
        program < 0 ? RankProgram{.argv = options.argv, .path = job.program, .role = options.role}
                    : RankProgram{.argv = options.more_programs[more].argv,
                                  .path = job.more_programs.at(more),
                                  .role = options.more_programs[more].role};
    rank.role_rank = ranks_of_role[rank.role]++;
    all.push_back(std::move(rank));
  }
  for (RankProgram& rank : all)
    rank.role_world_size = ranks_of_role[rank.role];
  return all;
}

// What was asked for happens, or is an error.
void check_extra_env(const Environment& extra, const Environment& variables) {
  for (const auto& [name, value] : extra) {
    const bool ours = std::find(std::begin(kOthersVariables), std::end(kOthersVariables), name) !=
                      std::end(kOthersVariables);
    const auto found = variables.find(name);
    if (!ours && found != variables.end() && found->second == value)
      continue;
    throw Error(
        ErrorCode::invalid_argument,
        cat("--env: expected no variable that muster sets for each rank, got '",
            name,
            "'; leave it out",
            name.find("VISIBLE_DEVICES") == std::string::npos ? ""
                                                              : ", and choose GPUs with --gpus"));
  }
}

// The hosts that have ranks, counted in the plan's order.
struct HostPlace {
  int index = 0;
  int count = 0;
};

HostPlace place_of_host(const Plan& plan, int host_index) {
  HostPlace place;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    if (i > 0 && plan.ranks[i].host_index == plan.ranks[i - 1].host_index)
      continue;
    if (plan.ranks[i].host_index == host_index)
      place.index = place.count;
    ++place.count;
  }
  return place;
}

Environment rank_environment(const Plan& plan,
                             const RankPlan& rank,
                             const LaunchOptions& options,
                             const JobFacts& job,
                             const RankProgram& program,
                             const WorkerSpec& spec,
                             int attempt) {
  const int local_world_size = static_cast<int>(ranks_on_host(plan, rank.host_index).count);
  const HostPlace host = place_of_host(plan, rank.host_index);
  Environment variables = job.environment;
  for (const char* name : kOthersVariables)
    variables.erase(name);
  if (!job.mark.empty())
    variables["MUSTER_MARK"] = job.mark;
  for (const auto& [name, value] : options.extra_env)
    variables[name] = value;
  // What only the console would have, the card says once.
  if (spec.err.console && spec.err.file.empty())
    variables["MUSTER_CARD"] = spec.error_file;
  variables.emplace("PYTHONFAULTHANDLER", "1");  // a signal says the line that it came in
  if (job.on_terminal)
    variables.emplace("MUSTER_TTY", "1");  // ranks write into pipes and cannot see it
  variables.emplace(
      "OMP_NUM_THREADS",
      cat(std::max(
          1, job.cores / static_cast<int>(plan.simulated ? plan.ranks.size() : local_world_size))));

  // Python's Gloo, and NCCL, would take the address of the host's own name, which is loopback on
  // many machines.
  if (host.count > 1 && !plan.simulated && !job.interface.empty()) {
    variables.emplace("GLOO_SOCKET_IFNAME", job.interface);
    variables.emplace("NCCL_SOCKET_IFNAME",
                      cat("=", job.interface));  // this one, not all that begin so
  }

  RankEnv contract;
  contract.rank = rank.rank;
  contract.world_size = static_cast<int>(plan.ranks.size());
  contract.role_rank = program.role_rank;
  contract.role_world_size = program.role_world_size;
  contract.local_rank = rank.local_rank;
  contract.local_world_size = local_world_size;
  contract.role_name = program.role;
  contract.master_addr = job.master_addr;
  contract.master_port = job.master_port;
  contract.restart_count = job.restart_count;
  contract.attempt = attempt;
  contract.launch = job.launch;
  contract.group_rank = host.index;
  contract.group_world_size = host.count;
  contract.max_restarts = options.max_restarts;
  contract.run_id = job.run_id;
  contract.error_file = spec.error_file;
  contract.device = spec.device;
  contract.plan = job.plan_path;
  contract.store = job.store;
  contract.agent_store = job.agent_store;
  contract.secret_fd = job.secret_fd;
  contract.run_dir = job.work_dir;
  contract.backend = value_or(variables, "MUSTER_BACKEND", "auto");
  contract.simulated = plan.simulated;
  for (const auto& [name, value] : to_environment(contract))
    variables[name] = value;
  variables["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signal_list(options.stop_signals);
  if (options.virtual_local_rank || sees_own_gpu_first(plan, rank))
    variables["LOCAL_RANK"] = cat(0);
  if (!job.leases.empty())
    variables["MUSTER_LEASE_FD"] = job.leases;
  if (plan.simulated)
    variables.erase("CUDA_DEVICE_ORDER");
  for (const auto& [name, value] : visibility_variables(plan, rank)) {
    if (value) {
      variables[name] = *value;
    } else {
      variables.erase(name);
    }
  }
  check_extra_env(options.extra_env, variables);
  return variables;
}

StreamTarget stream_target(const LaunchOptions& options,
                           int local_rank,
                           int bit,
                           const std::string& file) {
  const bool redirected = (stream_bits(options.redirects, local_rank, "--redirects") & bit) != 0;
  const bool teed = (stream_bits(options.tee, local_rank, "--tee") & bit) != 0;
  const auto& filter = options.local_ranks_filter;
  const bool wanted =
      filter.empty() || std::find(filter.begin(), filter.end(), local_rank) != filter.end();
  return {.console = wanted && (teed || !redirected),
          .file = redirected || teed ? file : std::string()};
}

std::string line_prefix(const LaunchOptions& options,
                        const RankPlan& rank,
                        const std::string& role,
                        const Plan& plan) {
  if (options.line_prefix.empty()) {
    if (plan.ranks.size() == 1)
      return "";
    const bool one_host = plan.ranks.front().host_index == plan.ranks.back().host_index;
    return one_host ? cat("[", rank.rank, "] ") : cat("[", rank.rank, "@", rank.host, "] ");
  }
  return substitute(options.line_prefix,
                    {{"rank", cat(rank.rank)},
                     {"local_rank", cat(rank.local_rank)},
                     {"role_name", role},
                     {"hostname", rank.host}});
}

}  // namespace

std::vector<WorkerSpec> make_worker_specs(const Plan& plan,
                                          const LaunchOptions& options,
                                          const JobFacts& job,
                                          int attempt) {
  const RankRange here =
      plan.simulated ? RankRange{0, plan.ranks.size()} : ranks_on_host(plan, job.host_index);
  const std::vector<RankProgram> programs = rank_programs(options, job, plan.ranks.size());
  std::vector<WorkerSpec> specs;
  for (size_t i = here.first; i < here.first + here.count; ++i) {
    const RankPlan& rank = plan.ranks[i];
    const std::string files = cat(job.log_dir, "/", attempt, "/", rank.rank);
    WorkerSpec spec{
        .rank = rank.rank,
        .local_rank = rank.local_rank,
        .attempt = attempt,
        .host = rank.host,
        .device = rank.device.id(),
        .argv = programs[i].argv,
        .program = programs[i].path,
        .working_directory = options.work_dir,
        .out = stream_target(options, rank.local_rank, 1, files + ".out"),
        .err = stream_target(options, rank.local_rank, 2, files + ".err"),
        .prefix = line_prefix(options, rank, programs[i].role, plan),
        .collapse = options.collapse && options.line_prefix.empty() && plan.ranks.size() > 1,
        .error_file = files + ".error.json"};
    if (rank.bind_cpus && !plan.simulated)
      spec.cpus = parse_cpu_list(rank.cpus);
    spec.environment = rank_environment(plan, rank, options, job, programs[i], spec, attempt);
    specs.push_back(std::move(spec));
  }
  return specs;
}

int stream_bits(const std::string& text, int local_rank, const char* flag) {
  const auto bad = [&] {
    return Error(ErrorCode::invalid_argument,
                 cat(flag,
                     ": expected 0, 1 (stdout), 2 (stderr), 3 (both), or one of "
                     "these for each local rank as in 0:1,1:3, got '",
                     text,
                     "'"));
  };
  const auto bits = [&](const std::string& piece) {
    const auto value = parse_int(piece);
    if (!value || *value < 0 || *value > 3)
      throw bad();
    return static_cast<int>(*value);
  };
  if (text.find(':') == std::string::npos)
    return bits(text);
  int result = 0;
  for (const std::string& piece : split(text, ',')) {
    const auto parts = split(piece, ':');
    const auto rank = parse_int(parts[0]);
    if (parts.size() != 2 || !rank || *rank < 0)
      throw bad();
    const int value = bits(parts[1]);
    if (*rank == local_rank)
      result = value;
  }
  return result;
}

std::string substitute(const std::string& text, const Environment& values) {
  std::string out;
  const auto is_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '$' || i + 1 == text.size()) {
      out += text[i++];
      continue;
    }
    if (text[i + 1] == '$') {
      out += '$';
      i += 2;
      continue;
    }
    const bool braces = text[i + 1] == '{';
    const size_t from = i + (braces ? 2 : 1);
    size_t to = from;
    while (to < text.size() && is_name(text[to]))
      ++to;
    const size_t end = braces ? to + 1 : to;
    const auto value = values.find(text.substr(from, to - from));
    if (value == values.end() || (braces && (to == text.size() || text[to] != '}'))) {
      out += text[i++];
      continue;
    }
    out += value->second;
    i = end;
  }
  return out;
}

}  // namespace muster
