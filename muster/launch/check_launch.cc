// The values are checked as the launcher uses them, whoever wrote them. An error names the flag of
// `muster run`; a member of RunOptions and a keyword of Python have the same name.
#include "muster/launch/check_launch.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/mesh_shape.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"
#include "muster/launch/lease_plan.h"
#include "muster/launch/rank_spec.h"

namespace muster {

namespace {

constexpr auto kCollectiveTimeout = "MUSTER_COLLECTIVE_TIMEOUT";

void check_counts(const LaunchOptions& options) {
  if (options.max_restarts < 0) {
    throw invalid_argument("--max-restarts: expected 0 or more, got ", options.max_restarts);
  }
  if (options.cpu_slots < 0) {
    throw invalid_argument("--cpu-slots: expected 1 or more, got ", options.cpu_slots);
  }
  const int* const below_zero =
      element_where(options.local_ranks_filter, [](int local_rank) { return local_rank < 0; });
  if (below_zero != nullptr)
    throw bad_flag("--local-ranks-filter", "local ranks as in 0,1,2", cat(*below_zero));
}

// Each thing that a plan says already, as the flag that asks for it and what was asked.
std::vector<std::pair<const char*, std::string>> asked_beside_plan(const Request& request) {
  const auto hosts = mapped(request.hosts, &HostRequest::name);
  const auto memory = mapped(request.rank_memory_bytes, format_bytes);
  std::string ranks = text_of(request.nproc_per_node);
  if (request.cpu_only)
    ranks = "cpu";
  if (request.gpu_only)
    ranks = "gpu";
  const Request none;
  const auto unless = [](bool is_default, const std::string& text) {
    return is_default ? "" : text;
  };
  return {{"--gpus", request.gpus.text},
          {"--policy", request.policy},
          {"--map", join(request.map, ",")},
          {"--map-command", unless(!request.map_of, "a command")},
          {"Request::choose", unless(!request.choose, "a function")},
          {"--scores", unless(request.scores.empty(), plural(request.scores.size(), "score"))},
          {"--rank-memory", join(memory, ",")},
          {"--mesh", unless(request.mesh.empty(), to_string(MeshShape{request.mesh}))},
          {"--topology", unless(request.switches.empty(), "a network")},
          {"--hosts", join(hosts, ",")},
          {"--nproc-per-node", ranks},
          {"--gpus-per-rank", unless(request.gpus_per_rank == 1, cat(request.gpus_per_rank))},
          {"--global-batch", unless(request.global_batch == 0, cat(request.global_batch))},
          {"--numa-binding",
           unless(request.numa_binding == none.numa_binding, to_string(request.numa_binding))},
          {"--surplus", unless(request.surplus == none.surplus, to_string(request.surplus))},
          {"--visibility",
           unless(request.visibility == none.visibility, to_string(request.visibility))}};
}

void check_given_plan(const LaunchOptions& options) {
  if (options.plan.empty())
    return;
  for (const auto& [flag, value] : asked_beside_plan(options.request)) {
    if (!value.empty())
      throw bad_flag("--plan", cat("no ", flag, " beside it"), value, "the plan says all that");
  }
}

void check_above_zero(milliseconds time, const char* flag) {
  if (time <= milliseconds(0))
    throw bad_flag(flag, "a time above 0", format_duration(time));
}

void check_wait(const LaunchOptions& options) {
  if (!options.wait)
    return;
  const std::string wait =
      *options.wait == kWaitForever ? std::string("forever") : format_duration(*options.wait);
  if (*options.wait < milliseconds(0))
    throw bad_flag("--wait", "a time of 0 or more", wait);
  if (!options.lease)
    throw bad_flag("--wait", "no --no-lease beside it, which takes GPUs that others hold", wait);
}

void check_times(const LaunchOptions& options) {
  if (options.shutdown_timeout < milliseconds(0)) {
    throw bad_flag(
        "--shutdown-timeout", "a time of 0 or more", format_duration(options.shutdown_timeout));
  }
  if (options.stopped_timeout)
    check_above_zero(*options.stopped_timeout, "--stopped-timeout");
  if (options.time_limit)
    check_above_zero(*options.time_limit, "--timeout");
  check_above_zero(options.rejoin_within, "--collective-timeout");
  check_wait(options);
}

// No process can handle SIGKILL and SIGSTOP.
void check_signals(const Ints& signals) {
  for (const int number : signals) {
    if (number < 1 || number > SIGSYS || number == SIGKILL || number == SIGSTOP)
      throw bad_flag("--signals-to-handle",
                     "signals that a process can handle, as SIGTERM and SIGINT",
                     cat(number));
  }
}

// Only the launcher sets the ranks' own variables.
void check_variables(const Environment& variables) {
  for (const auto& [name, value] : variables) {
    if (!is_variable_name(name)) {
      throw bad_flag("--env",
                     "NAME=VALUE with a name of letters, digits and '_'",
                     printable(cat(name, "=", value)));
    }
    if (is_set_for_ranks(name))
      throw bad_flag("--env", "no variable that muster sets for each rank", name, "leave it out");
  }
}

// The ranks read MUSTER_TRACE, from the launcher's environment too.
void check_trace(const LaunchOptions& options) {
  const auto check = [](const std::string& asked, const char* what) {
    if (asked != "0" && asked != "1" && asked != "operators")
      throw bad_flag(what, "no value, 1, operators or 0", asked);
  };
  if (const auto told = get_env("MUSTER_TRACE"))
    check(*told, "MUSTER_TRACE");
  if (const std::string* const asked = value_at(options.extra_env, "MUSTER_TRACE"))
    check(*asked, "--trace");
}

// The number of ranks on the host that has most of them; 0 where the devices decide that somewhere.
int most_ranks_asked_for(const Request& request) {
  const int unless_told = request.nproc_per_node.value_or(0);
  if (request.hosts.empty())
    return unless_told;
  const auto ranks = mapped(request.hosts, [unless_told](const HostRequest& host) {
    return host.nproc.value_or(unless_told);
  });
  const auto [least, most] = std::ranges::minmax(ranks);
  return least == 0 ? 0 : most;
}

}  // namespace

bool is_variable_name(const std::string& name) {
  const auto is_digit = [](unsigned char c) {
    return std::isdigit(c) != 0;
  };
  const auto is_word = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  };
  return !name.empty() && !is_digit(name[0]) && all_of(name, is_word);
}

// The names are those that the launcher sets, whatever their values.
bool is_set_for_ranks(const std::string& name) {
  static const Environment contract = to_environment(RankEnv{});
  return contract.contains(name) && name != "MUSTER_BACKEND";
}

void check_launch(const LaunchOptions& options) {
  check_given_plan(options);
  check_counts(options);
  check_signals(options.stop_signals);
  check_variables(options.extra_env);
  check_times(options);
  check_trace(options);
  stream_bits(options.redirects, 0, "--redirects");
  stream_bits(options.tee, 0, "--tee");
  if (!options.dry_run && options.argv.empty()) {
    throw invalid_argument("launch: expected a program to run, got none");
  }
}

// Without it the last sizes would be dropped without a word. Ranks that --surplus drop leaves out
// may have been asked for.
void check_sizes_have_ranks(const Request& request) {
  const int most = most_ranks_asked_for(request);
  const bool all_have = std::cmp_less_equal(request.rank_memory_bytes.size(), most);
  if (most == 0 || all_have || request.surplus == Surplus::drop)
    return;
  throw invalid_argument("--rank-memory: expected one size for each local rank, or fewer (",
                         plural(most, "rank"),
                         "), got ",
                         request.rank_memory_bytes.size(),
                         "; leave the last ones out");
}

void set_failure_policy(FailurePolicy policy,
                        std::optional<int> max_restarts,
                        LaunchOptions& options) {
  options.failure_policy = policy;
  options.max_restarts =
      max_restarts.value_or(policy == FailurePolicy::replace ? kReplacements : 0);
}

void set_collective_timeout(OptionalDuration told, LaunchOptions& options) {
  if (told) {
    options.extra_env[kCollectiveTimeout] = cat(told->count(), "ms");
    options.rejoin_within = *told;
  } else if (const auto inherited = get_env(kCollectiveTimeout)) {
    options.rejoin_within = parse_duration(*inherited, kCollectiveTimeout);
    check_above_zero(options.rejoin_within, kCollectiveTimeout);
  }
}

}  // namespace muster
