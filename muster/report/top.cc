// A sample puts together what several sources know, in this order: the plan names the ranks and
// their devices, the run's record their ends, the activity files their steps and calls, /proc their
// processes on this host, the driver their GPUs, and the other hosts' answers the ranks there. A
// later source replaces the state that an earlier one has told.
#include "muster/report/top.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/json_words.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/device/probe.h"
#include "muster/launch/run_folder.h"
#include "muster/launch/run_recorder.h"
#include "muster/placement/plan_json.h"
#include "muster/report/host_samples.h"
#include "muster/report/rank_work.h"
#include "muster/trace/activity_clock.h"

namespace muster {
namespace {

// A launcher that has ended does not go on, even if nobody has waited for it yet.
bool goes_on(const JobNote& job) {
  const Fd launcher = open_job(job);
  return launcher.valid() && !wait_for_job(launcher, milliseconds(0));
}

// Returns the present, or the end of a launch that has ended. Units: nanoseconds since 1970.
int64_t moment_of(const std::optional<LaunchRecord>& launch) {
  if (launch && launch->ended)
    return std::llround(*launch->ended * 1e9);
  return nanoseconds_of(CLOCK_REALTIME);
}

// What `read` says of a file of the run's folder; nothing where that is damaged, which is told.
template <class Read>
auto read_or_tell(const char* file, Strings& problems, const Read& read) -> decltype(read()) {
  try {
    return read();
  } catch (const Error& problem) {
    problems.push_back(cat(file, ": ", json_words(problem.what())));
    return std::nullopt;
  }
}

// A host that is not the first of its job has its part of the plan, and the whole when asked.
std::string plan_file_of(const std::string& run_dir) {
  const std::string whole = run_dir + "/plan.json";
  if (path_exists(whole))
    return whole;
  const auto parts = paths_in(cat(run_dir, "/", kPlanParts));
  const auto* const own =
      element_where(parts, [](const auto& part) { return file_name(part).starts_with(kPlanPart); });
  return own != nullptr ? own->string() : "";
}

// A job that another launcher has started has no plan.
std::optional<Plan> plan_of_run(const std::string& run_dir, Strings& problems) {
  const auto path = plan_file_of(run_dir);
  if (path.empty())
    return std::nullopt;
  return read_or_tell("plan.json", problems, [&] {
    return std::optional(plan_from_json(read_small_plain_file(path), path));
  });
}

// Returns the last launch that the folder's record tells of.
std::optional<LaunchRecord> launch_of_run(const std::string& run_dir, Strings& problems) {
  const auto record = read_or_tell("run.json", problems, [&] { return read_run_record(run_dir); });
  if (!record || record->launches.empty())
    return std::nullopt;
  return record->launches.back();
}

std::string devices_of(const RankPlan& rank) {
  return rank.device.is_gpu() ? "GPU " + gpu_numbers(rank) : rank.device.id();
}

// The plan's ranks come first, in its order, on which add_gpus() relies.
void add_plan(TopView& view, const Plan& plan) {
  view.ranks = mapped(plan.ranks, [](const RankPlan& rank) {
    return TopRank{.rank = rank.rank, .host = rank.host, .device = devices_of(rank)};
  });
}

// Adds the use of its GPU to a rank. The size of the memory may not be told.
void add_readings(TopRank& rank, const Gpu& gpu) {
  rank.gpu_percent = gpu.utilization_percent;
  if (gpu.memory_total_bytes == 0)
    return;
  rank.gpu_total_bytes = gpu.memory_total_bytes;
  rank.gpu_used_bytes = gpu.memory_used_bytes();
}

// Adds what this host's driver says of the GPUs of ranks here. The view's ranks begin with the
// plan's, in the same order.
void add_gpus(TopView& view, const Plan& plan, const IntSet& here) {
  const auto on_gpus = filtered_indices(plan.ranks.size(), [&](size_t i) {
    const RankPlan& rank = plan.ranks[i];
    return here.contains(rank.rank) && rank.device.is_gpu();
  });
  if (on_gpus.empty())
    return;
  const Inventory inventory = probe_this_machine({.detail = GpuDetail::full});
  const Gpus& gpus = inventory.hosts.at(0).gpus;
  for (const size_t i : on_gpus) {
    const Gpu* const gpu =
        element_where(gpus, [&](const Gpu& one) { return one.has(plan.ranks[i].device.uuid); });
    if (gpu != nullptr)
      add_readings(view.ranks[i], *gpu);
  }
}

// Returns the rank's row, a new one if the view has none yet.
TopRank& rank_in(TopView& view, int number) {
  if (TopRank* const rank = element_with(view.ranks, number, &TopRank::rank))
    return *rank;
  view.ranks.push_back({.rank = number});
  return view.ranks.back();
}

const char* state_of_exit(const RankExit& exit) {
  if (!exit.failed())
    return "ended";
  return exit.sent_signal != 0 ? "ended by muster" : "failed";
}

// Returns the state of a rank whose file does not say that it has ended, and whose process is not
// known (yet). `is_here`: the rank is one of this host.
const char* state_without_process(bool job_runs, bool is_here) {
  if (!job_runs)
    return "killed";
  return is_here ? "gone" : "elsewhere";
}

// Adds how the last attempt's ranks ended, as far as the launcher has told.
void add_ends(TopView& view, const LaunchRecord& launch) {
  if (launch.attempts.empty())
    return;
  view.attempt = launch.attempts.back().attempt;
  for (const RankExit& exit : launch.attempts.back().exits)
    rank_in(view, exit.rank).state = state_of_exit(exit);
}

// Adds what other hosts have answered. This host knows more of the ranks here.
void add_other_hosts(TopView& view, const IntSet& here) {
  for (TopRank& answer : ranks_of_other_hosts(view.run_dir, view.problems)) {
    TopRank* const rank = element_with(view.ranks, answer.rank, &TopRank::rank);
    // An answer about a rank that no source here knows is left out.
    if (rank != nullptr && !here.contains(answer.rank))
      *rank = std::move(answer);
  }
}

// Gives ranks a state of which no source knows one. If the job is not done, the hosts of which no
// rank is known are unseen.
void find_unseen_hosts(TopView& view) {
  const bool is_done = view.outcome == "done";
  std::map<std::string, bool> is_seen;
  for (TopRank& rank : view.ranks) {
    is_seen[rank.host] |= is_done || !rank.state.empty();
    if (rank.state.empty())
      rank.state = is_done ? "ended" : "not seen";
  }
  std::erase_if(is_seen, [](const auto& host) { return host.second; });
  const auto unseen = std::views::keys(is_seen);
  view.unseen_hosts.assign(unseen.begin(), unseen.end());
}

}  // namespace

bool TopView::hosts_have_answered() const {
  return has_whole_plan && unseen_hosts.empty() && !contains(ranks, "elsewhere", &TopRank::state);
}

TopSampler::TopSampler(std::string run_dir, std::optional<JobNote> job)
    : run_dir_(std::move(run_dir)), job_(std::move(job)) {}

// A closed file is of a rank whose function has returned.
void TopSampler::add_activity(TopRank& rank, const ActivityView& view, int64_t now_ns) {
  rank.host = text_or(rank.host, view.host);
  rank.device = text_or(rank.device, view.device);
  if (view.closed_ns)
    rank.state = "ended";
  if (view.steps > 0)
    rank.step = view.step;
  rank.loss = view.loss;
  Before& before = before_[rank.rank];
  note_speed(before, view);
  rank.seconds_per_step = before.seconds_per_step;
  rank.samples_per_second = before.samples_per_second;
  if (!view.closed_ns) {
    rank.doing = doing_text(view);
    rank.doing_seconds = seconds_between(doing_since_ns(view), now_ns);
  }
  if (const CallView* const call = last_ended_call(view)) {
    rank.last_call = call->text();
    if (call->end_ns)
      rank.last_call_seconds = seconds_between(*call->end_ns, now_ns);
  }
}

// Speeds are those of the steps since the last look that saw one, so that they follow a change. A
// look that sees no step leaves what is known.
void TopSampler::note_speed(Before& before, const ActivityView& view) {
  const bool same = before.activity.opened_ns == view.opened_ns && before.activity.pid == view.pid;
  if (same && view.steps <= before.activity.steps)
    return;
  if (!same)
    before = {};
  before.seconds_per_step = muster::seconds_per_step(view);
  before.samples_per_second = muster::samples_per_second(view);
  const double seconds = seconds_between(before.activity.step_ns, view.step_ns);
  if (before.activity.step_ns > 0 && seconds > 0) {
    const auto steps = static_cast<double>(view.steps - before.activity.steps);
    const auto samples = static_cast<double>(view.samples - before.activity.samples);
    before.seconds_per_step = seconds / steps;
    if (view.samples > 0)
      before.samples_per_second = samples / seconds;
  }
  before.activity = view;
}

// The use of the CPU is a difference: to the last look at this process, or to its start.
void TopSampler::add_process(TopRank& rank, const RankUsage& process, TimePoint now) {
  rank.pid = process.pid;
  rank.state = process.stopped ? "stopped" : "running";
  rank.memory_bytes = process.memory_bytes;
  Before& before = before_[rank.rank];
  double seconds = process.age_seconds;
  double used = process.cpu_seconds;
  if (before.pid == process.pid) {
    seconds = in_seconds(now - before.at);
    used -= before.cpu_seconds;
  }
  if (seconds > 0)
    rank.cpu_percent = std::max(0.0, used / seconds * 100);
  before.pid = process.pid;
  before.at = now;
  before.cpu_seconds = process.cpu_seconds;
}

// Adds the job's name and how long it has run. The launcher's note knows them of a job that runs,
// and the record of one that has ended.
void TopSampler::add_job(TopView& view,
                         const std::optional<LaunchRecord>& launch,
                         int64_t moment) const {
  const double seconds = static_cast<double>(moment) / 1e9;
  view.title = run_dir_;
  if (launch) {
    view.title = join(launch->argv, " ");
    view.id = launch->run_id;
    view.seconds = seconds - launch->began;
    if (!view.running)
      view.outcome = launch->ended ? launch->outcome : "no end told";
  }
  if (job_) {
    view.title = job_->program;
    view.id = job_->id;
    if (!launch)
      view.seconds = seconds - static_cast<double>(job_->since_seconds);
  }
}

// Adds what the activity files of the newest attempt tell.
TopSampler::LiveRanks TopSampler::add_activities(TopView& view, int64_t moment) {
  LiveRanks live;
  for (const ActivityView& rank : read_ranks(run_dir_, view.problems)) {
    view.attempt = std::max(view.attempt, rank.attempt);
    TopRank& row = rank_in(view, rank.rank);
    if (rank.attempt < view.attempt)
      continue;
    // Times in a file are of its host's monotonic clock. This host's can be read; another host's
    // follows from the time of day, which may jump.
    const bool is_of_this_host = rank.host == activity_host_name();
    const bool is_here = view.running && is_of_this_host;
    add_activity(row, rank, is_here ? activity_now() : moment - rank.unix_minus_monotonic_ns);
    if (is_here && !rank.closed_ns) {
      live.by_pid[rank.pid] = rank.rank;
      live.numbers.insert(rank.rank);
    }
    if (row.state.empty())
      row.state = state_without_process(view.running, is_of_this_host);
  }
  return live;
}

// Adds what the ranks' processes on this host use. Returns the numbers of these ranks. A process
// that has the number of a live rank, but is not that rank's, is left of an earlier attempt.
IntSet TopSampler::add_processes(TopView& view, const LiveRanks& live) {
  IntSet here;
  const auto now = Clock::now();
  for (const RankUsage& process : find_rank_usage(run_dir_)) {
    const int* const known = value_at(live.by_pid, process.pid);
    const int number = known != nullptr ? *known : process.rank;
    if (known == nullptr && live.numbers.contains(number))
      continue;
    add_process(rank_in(view, number), process, now);
    here.insert(number);
  }
  return here;
}

TopView TopSampler::sample(Hosts hosts) {
  TopView view{.run_dir = run_dir_};
  view.running = job_ && goes_on(*job_);
  auto launch = launch_of_run(run_dir_, view.problems);
  // Another host keeps the record of a job that runs, if the one here is of an earlier launch.
  if (view.running && launch && launch->ended)
    launch.reset();
  const int64_t moment = moment_of(launch);
  add_job(view, launch, moment);
  const auto plan = plan_of_run(run_dir_, view.problems);
  if (plan)
    add_plan(view, *plan);
  view.has_whole_plan = !plan || !plan->part;
  if (launch)
    add_ends(view, *launch);
  const LiveRanks live = add_activities(view, moment);
  const IntSet here = add_processes(view, live);
  if (plan)
    add_gpus(view, *plan, here);
  if (view.running && hosts == Hosts::all)
    add_other_hosts(view, here);
  std::ranges::sort(view.ranks, {}, &TopRank::rank);
  find_unseen_hosts(view);
  return view;
}

}  // namespace muster
