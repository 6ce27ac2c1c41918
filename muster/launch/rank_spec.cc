// The environment of a rank comes about in this order: the launcher's own, without what speaks of a
// rank around it; --env; defaults of what the user has not set; the contract (RankEnv);
// the GPUs that the rank may see. Later steps win, and --env may not contradict them.
#include "muster/launch/rank_spec.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/rank_env_table.h"
#include "muster/base/text_of.h"
#include "muster/base/usage.h"
#include "muster/device/cpu_list.h"
#include "muster/launch/lease.h"
#include "muster/placement/plan_part.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

// A rank that sees its own GPU first finds it as ordinal 0, so scripts that use LOCAL_RANK as the
// ordinal must find 0 there. MUSTER_LOCAL_RANK keeps the true one. A process that drives several
// GPUs counts them itself.
bool sees_own_gpu_first(const Plan& plan, const RankPlan& rank) {
  const bool has_one_gpu = rank.device.is_gpu() && rank.more_devices.empty();
  return has_one_gpu && plan.visibility != Visibility::all && rank.device.ordinal.value == 0;
}

// The program of a rank, and the rank's place among those of the same role.
struct RankProgram {
  Strings argv;
  std::string path;
  std::string role;
  int role_rank = 0;
  int role_world_size = 0;
};

// The program of each rank, in rank order. The last ranks run the further programs, the ranks
// before them the first one. Throws: invalid_argument where no rank is left for the first.
std::vector<RankProgram> programs_in_order(const LaunchOptions& options,
                                           const JobFacts& job,
                                           size_t world_size) {
  std::vector<RankProgram> further;
  for (const size_t i : indices_of(options.more_programs)) {
    const ProgramRanks& more = options.more_programs[i];
    const RankProgram program{
        .argv = more.argv, .path = job.more_programs.at(i), .role = more.role};
    further.insert(further.end(), more.num_ranks, program);
  }
  const size_t least_of_first = options.more_programs.empty() ? 0 : 1;
  if (further.size() + least_of_first > world_size) {
    throw invalid_argument("launch: expected more than ",
                           plural(further.size(), "rank"),
                           ", for ",
                           options.more_programs.size() + 1,
                           " programs, got ",
                           world_size);
  }
  const RankProgram first{.argv = options.argv, .path = job.program, .role = options.role};
  std::vector<RankProgram> all(world_size - further.size(), first);
  append_all(all, further);
  return all;
}

// The programs with each rank's place among the ranks of its role.
std::vector<RankProgram> rank_programs(const LaunchOptions& options,
                                       const JobFacts& job,
                                       size_t world_size) {
  auto all = programs_in_order(options, job, world_size);
  std::map<std::string, int> ranks_of_role;
  for (RankProgram& rank : all)
    rank.role_rank = ranks_of_role[rank.role]++;
  for (RankProgram& rank : all)
    rank.role_world_size = ranks_of_role[rank.role];
  return all;
}

// Throws: invalid_argument for a variable of --env that the rank would not get as it was asked for.
void check_extra_env(const Environment& extra, const Environment& variables) {
  for (const auto& [name, value] : extra) {
    const bool ours = has_trait(name, RankVariable::kErased);
    const std::string* const found = value_at(variables, name);
    const bool is_as_asked = found != nullptr && *found == value;
    if (is_as_asked && !ours)
      continue;
    const bool chooses_gpus = has_text(name, "VISIBLE_DEVICES");
    throw invalid_argument("--env: expected no variable that muster sets for each rank, got '",
                           printable(name),
                           "'; leave it out",
                           chooses_gpus ? ", and choose GPUs with --gpus" : "");
  }
}

// One rank, and what its environment is made of.
struct RankStart {
  const Plan& plan;
  const RankPlan& rank;
  const LaunchOptions& options;
  const JobFacts& job;
  const RankProgram& program;
  int attempt;
  int world_size;
  int local_world_size;
  HostPlace host;
};

// Sets what the user may have set otherwise: the user's word counts.
void set_defaults(Environment& variables, const RankStart& start) {
  const JobFacts& job = start.job;
  const bool simulated = start.plan.simulated;
  variables.emplace("PYTHONFAULTHANDLER", "1");  // a signal says the line that it came in
  const int ranks_here = simulated ? start.world_size : start.local_world_size;
  variables.emplace("OMP_NUM_THREADS", cat(std::max(1, job.cores / ranks_here)));
  // Python's Gloo, and NCCL, would take the address of the host's own name, which is loopback on
  // many machines.
  if (start.host.count > 1 && !simulated && !job.interface.empty()) {
    variables.emplace("GLOO_SOCKET_IFNAME", job.interface);
    // With "=" NCCL takes this one, and not all whose names begin so.
    variables.emplace("NCCL_SOCKET_IFNAME", cat("=", job.interface));
  }
}

// The part of the environment that rank_env.h defines.
RankEnv contract_of(const RankStart& start, const RankSpec& spec, const std::string& backend) {
  const JobFacts& job = start.job;
  return {.rank = start.rank.rank,
          .world_size = start.world_size,
          .local_rank = start.rank.local_rank,
          .local_world_size = start.local_world_size,
          .group_rank = start.host.index,
          .group_world_size = start.host.count,
          .role_name = start.program.role,
          .role_rank = start.program.role_rank,
          .role_world_size = start.program.role_world_size,
          .master_addr = job.master_addr,
          .master_port = job.master_port,
          .restart_count = job.restart_count,
          .max_restarts = start.options.max_restarts,
          .attempt = start.attempt,
          .launch = job.launch,
          .run_id = job.run_id,
          .error_file = spec.error_file,
          .device = spec.device,
          .plan = job.plan_path,
          .store = job.store,
          .agent_store = job.agent_store,
          .secret_fd = job.secret_fd,
          .run_dir = job.work_dir,
          .backend = backend,
          .simulated = start.plan.simulated};
}

Environment rank_environment(const RankStart& start, const RankSpec& spec) {
  const LaunchOptions& options = start.options;
  const JobFacts& job = start.job;
  Environment variables = job.environment;
  erase_outer_rank(variables);
  if (!job.mark.empty())
    variables["MUSTER_MARK"] = job.mark;
  for (const auto& [name, value] : options.extra_env)
    variables[name] = value;
  const bool only_console_has_errors = spec.err.console && spec.err.file.empty();
  if (only_console_has_errors)
    variables["MUSTER_CARD"] = spec.error_file;  // the card says them, once
  if (job.on_terminal)
    variables.emplace("MUSTER_TTY", "1");  // ranks write into pipes and cannot see it
  set_defaults(variables, start);
  const auto backend = text_or(find_or(variables, "MUSTER_BACKEND"), "auto");
  for (const auto& [name, value] : to_environment(contract_of(start, spec, backend)))
    variables[name] = value;
  variables[kFailurePolicyVariable] = to_string(options.failure_policy);
  // "SIGTERM,SIGINT", as torchrun spells it.
  variables["TORCHELASTIC_SIGNALS_TO_HANDLE"] =
      join(mapped(options.stop_signals, signal_name), ",");
  if (options.virtual_local_rank || sees_own_gpu_first(start.plan, start.rank))
    variables["LOCAL_RANK"] = "0";
  if (!job.leases.empty())
    variables[kLeaseVariable] = job.leases;
  if (start.plan.simulated)
    variables.erase("CUDA_DEVICE_ORDER");
  show_devices(start.plan, start.rank, variables);
  check_extra_env(options.extra_env, variables);
  return variables;
}

// `bit` is the stream's: 1 for standard output, 2 for standard error.
StreamTarget stream_target(const LaunchOptions& options,
                           int local_rank,
                           int bit,
                           const std::string& file) {
  const bool redirected = (stream_bits(options.redirects, local_rank, "--redirects") & bit) != 0;
  const bool teed = (stream_bits(options.tee, local_rank, "--tee") & bit) != 0;
  const auto& filter = options.local_ranks_filter;
  const bool wanted = filter.empty() || contains(filter, local_rank);
  const bool has_file = redirected || teed;
  const bool on_console = teed || !redirected;
  return {.console = wanted && on_console, .file = has_file ? file : ""};
}

// The default prefix names the rank, and its host if there are several; a job of one rank has none.
std::string line_prefix(const LaunchOptions& options,
                        const RankPlan& rank,
                        const std::string& role,
                        const Plan& plan) {
  if (options.line_prefix.empty()) {
    if (world_size(plan) == 1)
      return "";
    const bool one_host = place_of_host(plan, rank.host_index).count == 1;
    return one_host ? cat("[", rank.rank, "] ") : cat("[", rank.rank, "@", rank.host, "] ");
  }
  return substitute(options.line_prefix,
                    {{"rank", cat(rank.rank)},
                     {"local_rank", cat(rank.local_rank)},
                     {"role_name", role},
                     {"hostname", rank.host}});
}

}  // namespace

RankSpecs make_rank_specs(const Plan& plan,
                          const LaunchOptions& options,
                          const JobFacts& job,
                          int attempt) {
  const RankRange here =
      plan.simulated ? RankRange{0, plan.ranks.size()} : ranks_on_host(plan, job.host_index);
  const int num_ranks = world_size(plan);
  const auto programs = rank_programs(options, job, num_ranks);
  RankSpecs specs;
  for (size_t i = here.first; i < here.first + here.count; ++i) {
    const RankPlan& rank = plan.ranks[i];
    const RankProgram& program = programs.at(rank.rank);
    const auto files = cat(job.log_dir, "/", attempt, "/", rank.rank);
    RankSpec spec{.rank = rank.rank,
                  .local_rank = rank.local_rank,
                  .attempt = attempt,
                  .host = rank.host,
                  .device = rank.device.id(),
                  .argv = program.argv,
                  .program = program.path,
                  .working_directory = options.work_dir,
                  .out = stream_target(options, rank.local_rank, 1, files + ".out"),
                  .err = stream_target(options, rank.local_rank, 2, files + ".err"),
                  .prefix = line_prefix(options, rank, program.role, plan),
                  .collapse = options.collapse && options.line_prefix.empty() && num_ranks > 1,
                  .error_file = files + ".error.json"};
    if (rank.bind_cpus && !plan.simulated)
      spec.cpus = parse_cpu_list(rank.cpus);
    const RankStart start{
        .plan = plan,
        .rank = rank,
        .options = options,
        .job = job,
        .program = program,
        .attempt = attempt,
        .world_size = num_ranks,
        .local_world_size = static_cast<int>(ranks_on_host(plan, rank.host_index).count),
        .host = place_of_host(plan, rank.host_index)};
    spec.environment = rank_environment(start, spec);
    specs.push_back(std::move(spec));
  }
  return specs;
}

void show_devices(const Plan& plan, const RankPlan& rank, Environment& variables) {
  for (const auto& [name, value] : visibility_variables(plan, rank)) {
    if (value) {
      variables[name] = *value;
    } else {
      variables.erase(name);
    }
  }
}

// A local rank that the text does not name has 0. The text is checked as a whole for every rank.
int stream_bits(const std::string& text, int local_rank, const char* flag) {
  const auto bad = [&](const std::string& got) {
    return bad_flag(
        flag,
        "0, 1 (stdout), 2 (stderr), 3 (both), or one of these for each local rank as in 0:1,1:3",
        got);
  };
  const auto bits = [&](const std::string& piece) {
    const auto value = parse_number(piece, 0, 3);
    if (!value)
      throw bad(piece);
    return *value;
  };
  if (!contains(text, ':'))
    return bits(text);
  int result = 0;
  std::set<int64_t> named;
  for (const auto& piece : split(text, ',')) {
    const auto parts = split(piece, ':');
    const auto rank = parse_int(parts[0]);
    if (parts.size() != 2 || !rank || *rank < 0)
      throw bad(piece);
    if (!named.insert(*rank).second)
      throw bad_flag(flag, "each local rank once", cat(*rank, " again"));
    const int value = bits(parts[1]);
    if (*rank == local_rank)
      result = value;
  }
  return result;
}

namespace {

bool is_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// A "$name" or "${name}" at the beginning of a text.
struct Placeholder {
  std::string name;
  size_t length;  // of all of it
};

// Nothing for braces that do not close. `text` begins with "$".
std::optional<Placeholder> placeholder_at_begin(std::string_view text) {
  const bool braces = text.starts_with("${");
  const size_t from = braces ? 2 : 1;
  size_t end = from;
  while (end < text.size() && is_of_name(text[end]))
    ++end;
  const std::string name(text.substr(from, end - from));
  if (!braces)
    return Placeholder{name, end};
  if (!text.substr(end).starts_with('}'))
    return std::nullopt;
  return Placeholder{name, end + 1};
}

}  // namespace

// "$$" is a dollar sign, and whatever is no placeholder stays as it is.
std::string substitute(const std::string& text, const Environment& values) {
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    if (rest.starts_with("$$")) {
      out += '$';
      rest.remove_prefix(2);
      continue;
    }
    const auto placeholder =
        rest.starts_with('$') ? placeholder_at_begin(rest) : std::optional<Placeholder>();
    const std::string* const value = placeholder ? value_at(values, placeholder->name) : nullptr;
    if (value == nullptr) {
      out += rest.front();
      rest.remove_prefix(1);
      continue;
    }
    out += *value;
    rest.remove_prefix(placeholder->length);
  }
  return out;
}

}  // namespace muster
