#include "muster/launch/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/patient_write.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/lease_plan.h"
#include "muster/launch/worker_group.h"
#include "muster/launch/worker_spec.h"
#include "muster/placement/draw_svg.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_table.h"
#include "muster/placement/planner.h"
#include "muster/launch/score_cache.h"
#include "muster/placement/selection.h"
#include "muster/supervise/child.h"
#include "muster/supervise/process_set.h"

namespace muster {

namespace {

// Everything that can be found wrong without looking at the machine is found before anything is started.
void check(const LaunchOptions& options) {
  if (options.max_restarts < 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("--max-restarts: expected 0 or more, got ", options.max_restarts));
  }
  stream_bits(options.redirects, 0, "--redirects");
  stream_bits(options.tee, 0, "--tee");
  if (!options.dry_run && options.argv.empty()) {
    throw Error(ErrorCode::invalid_argument, "launch: expected a program to run, got none");
  }
}

// Whether the selection has a pick of one of these kinds.
bool takes(const std::string& gpus, std::initializer_list<SelectionItem::Kind> kinds) {
  for (const SelectionPart& part : parse_selection(gpus).parts) {
    for (const SelectionItem& item : part.items) {
      if (std::find(kinds.begin(), kinds.end(), item.kind) != kinds.end()) return true;
    }
  }
  return false;
}

// Whether the selection takes GPUs by what they do now: then others will do where these have just been taken.
bool takes_any(const std::string& gpus) {
  using Kind = SelectionItem::Kind;
  return takes(gpus, {Kind::idle, Kind::free, Kind::fastest});
}

// Asks for no more than the request needs: every answer delays the start.
Inventory discover(const LaunchOptions& options) {
  if (!options.inventory.empty()) return read_inventory(options.inventory);
  const Request& request = options.request;
  ProbeOptions probe;
  probe.cpu_slots = options.cpu_slots;
  probe.gpus = !request.cpu_only;
  const bool busy_matters = takes_any(request.gpus) || request.policy == "spread" || request.policy == "pack";
  if (busy_matters || !options.svg.empty()) probe.detail = GpuDetail::full;
  probe.links = request.policy == "topology" || !options.svg.empty();
  probe.cpu_topology = request.numa_binding != NumaBinding::none || !options.svg.empty();
  return probe_this_machine(probe);
}

// A plan from a file fits when its GPUs are here and can be used.
Plan given_plan(const Inventory& inventory, const LaunchOptions& options) {
  Plan plan = plan_from_json(read_file(options.plan), options.plan);
  const Host& host = inventory.hosts.at(0);
  for (const RankPlan& rank : plan.ranks) {
    const auto refuse = [&](const std::string& expected, const std::string& got) {
      throw Error(ErrorCode::invalid_argument,
                  cat("--plan ", options.plan, ": expected ", expected, ", got ", got, " (rank ", rank.rank,
                      "); make the plan on this machine"));
    };
    if (rank.host_index != 0)
      refuse("ranks of one host", cat("one on host ", printable(rank.host), " as well"));
    if (rank.device.kind != DeviceAssignment::Kind::cuda || plan.simulated) continue;
    const auto is_it = [&](const Gpu& gpu) {
      const auto same = [&](const MigInstance& mig) { return mig.uuid == rank.device.uuid; };
      return gpu.uuid == rank.device.uuid || std::any_of(gpu.mig.begin(), gpu.mig.end(), same);
    };
    const auto gpu = std::find_if(host.gpus.begin(), host.gpus.end(), is_it);
    if (gpu == host.gpus.end()) refuse(cat("a GPU of host ", host.name), printable(rank.device.uuid.value));
    if (gpu->health != kHealthy)
      refuse("a GPU that can be used", cat(printable(rank.device.uuid.value), ": ", gpu->health));
  }
  return plan;
}

// Scores that were measured before, where the plan is made by them. Batches are divided by them only when
// every GPU has one; a cache that cannot be read is none, and said so.
Scores remembered_scores(const Inventory& inventory, const Request& request) {
  const bool by_speed = request.policy == "fastest" || takes(request.gpus, {SelectionItem::Kind::fastest});
  if (!request.scores.empty() || (!by_speed && request.global_batch == 0)) return request.scores;
  try {
    Scores scores = measured_scores(read_score_cache(default_score_cache()), inventory);
    return by_speed || has_every_gpu(scores, inventory) ? scores : Scores();
  } catch (const Error& error) {
    log(LogLevel::warn, cat(error.message(), "; going on without measured scores"));
    return {};
  }
}

Plan place(const Inventory& inventory, const LaunchOptions& options) {
  if (!options.plan.empty()) return given_plan(inventory, options);
  Request request = options.request;
  if (options.virtual_local_rank) request.visibility = Visibility::own;
  if (!inventory.simulated) request.masks = inherited_masks();
  request.scores = remembered_scores(inventory, request);
  Plan plan = muster::plan(inventory, request);
  if (!options.dry_run && inventory.hosts.size() > 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("launch: expected an inventory of one host, got ", inventory.hosts.size(),
                    "; this version starts ranks on one host (`muster plan` takes any number)"));
  }
  return plan;
}

// The plan with a lease on each of its GPUs, which a simulated one and one for CPUs do not need.
LeasedPlan place_and_lease(const Inventory& inventory, const LaunchOptions& options) {
  Plan plan = place(inventory, options);
  if (options.dry_run || !options.lease || lease_wishes(plan).empty()) return {.plan = std::move(plan)};
  const LeaseFolder folder({.inherited = get_env(kLeaseVariable).value_or("")});
  bool first = true;
  const auto make_plan = [&](const BusyGpus& busy) {
    if (std::exchange(first, false)) return plan;
    const Inventory now = options.wait ? discover(options) : inventory;
    return place(busy.empty() ? now : without_busy(now, busy), options);
  };
  return plan_with_leases(folder, make_plan, {.job = options.run_id, .program = options.argv.at(0)},
                          {.replan = options.plan.empty() && takes_any(options.request.gpus),
                           .wait = options.wait,
                           .on_wait = [](const std::string& line) { log(LogLevel::info, line); }});
}

void show_plan(const Plan& plan, const LaunchOptions& options, int fd) {
  if (options.quiet && !options.dry_run) return;
  std::string text = options.json ? plan_to_json(plan) : plan_table(plan);
  if (plan.simulated && !options.dry_run && !options.json) {
    text += "the machine above is simulated: its ranks run on this one's CPU\n";
  }
  if (options.dry_run) return write_all(fd, text);
  write_within(fd, text, kReaderPatience);  // who does not read it must not keep the ranks from starting
}

std::string time_text(std::chrono::system_clock::time_point at) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(at);
  std::tm local = {};
  ::localtime_r(&seconds, &local);
  char text[40];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S%z", &local)};
}

// For a launcher that is a rank of another one (or a Kubernetes job's main process): tell it what failed, in
// the form that it expects.
void pass_error_on(const JobFacts& job, const WorkerExit& first, int attempt) {
  const auto ours = get_env("TORCHELASTIC_ERROR_FILE");
  if (!ours) return;
  try {
    write_all(Fd(::open(ours->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)).get(),
              read_file(cat(job.log_dir, "/", attempt, "/", first.rank, ".error.json")));
  } catch (const Error&) {
    return;  // the rank reported nothing, or there is nowhere to pass it on: the card has all we know
  }
}

bool write_report(const std::string& path, const std::string& text) {
  try {
    write_file(path, text);
    return true;
  } catch (const Error& error) {
    log(LogLevel::error, error.message());
    return false;
  }
}

// Writes failure.json, prints the failure card, and gives the exit code, which holds whatever becomes of the
// other two.
int report(const GroupResult& result, const JobFacts& job, const LaunchOptions& options, int attempt) {
  const WorkerExit* first = first_failure(result.exits);
  if (first == nullptr) {
    if (result.stopped_by == 0) return 0;
    log(LogLevel::info, cat("stopped by ", signal_name(result.stopped_by), "; every rank has ended"));
    return 128 + result.stopped_by;
  }
  FailureContext context{.run_id = job.run_id,
                         .run_dir = job.run_dir,
                         .attempt = attempt,
                         .max_restarts = options.max_restarts,
                         .time = time_text(first->at)};
  context.has_report = write_report(cat(job.run_dir, "/failure.json"), failure_json(result.exits, context));
  pass_error_on(job, *first, attempt);
  write_within(STDERR_FILENO, failure_card(result.exits, context), kReaderPatience);
  return first->shell_code();
}

bool should_restart(const GroupResult& result, ProcessSet& processes, const LaunchOptions& options,
                    int attempt) {
  const WorkerExit* first = first_failure(result.exits);
  if (first == nullptr || result.stopped_by != 0 || attempt >= options.max_restarts) return false;
  if (const int signal = processes.stop_requested(); signal != 0) {  // it came when all ranks had ended
    log(LogLevel::info, cat("stopped by ", signal_name(signal), "; not starting again"));
    return false;
  }
  log(LogLevel::warn,
      cat("rank ", first->rank, " failed: ", first->cause, "; starting all ranks again (restart ",
          attempt + 1, " of ", options.max_restarts, ")"));
  return true;
}

}  // namespace

int exit_code_of(const Error& error) {
  if (const auto* spawn = dynamic_cast<const SpawnError*>(&error)) return spawn->exit_code();
  return error.code() == ErrorCode::invalid_argument ? 2 : 1;
}

int run(const LaunchOptions& given) {
  LaunchOptions options = given;
  if (options.run_id.empty()) options.run_id = make_uuid();
  check(options);
  const Inventory inventory = discover(options);
  LeasedPlan leased = place_and_lease(inventory, options);
  const Plan& plan = leased.plan;
  if (options.dry_run) {
    show_plan(plan, options, STDOUT_FILENO);
    if (!options.svg.empty()) write_file(options.svg, draw_svg(inventory, &plan));
    return 0;
  }
  ProcessSet processes({.stop_signals = options.stop_signals});
  const JobSetup job(options, plan, inventory.simulated ? usable_cores() : inventory.hosts.at(0).num_cores,
                     std::move(leased.leases));
  show_plan(plan, options, STDERR_FILENO);

  for (int attempt = 0;; ++attempt) {
    const std::vector<WorkerSpec> specs = make_worker_specs(plan, options, job.facts(), attempt);
    const GroupResult result =
        run_workers(processes, specs, job.inherited_fds(), {.shutdown_timeout = options.shutdown_timeout});
    if (should_restart(result, processes, options, attempt)) continue;
    const int exit_code = report(result, job.facts(), options, attempt);
    job.remove_empty_folders();
    return exit_code;
  }
}

}  // namespace muster
