#include "muster/report/top.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/device/probe.h"
#include "muster/launch/run_recorder.h"
#include "muster/placement/plan_json.h"
#include "muster/report/host_samples.h"
#include "muster/report/rank_work.h"
#include "muster/trace/activity_clock.h"

namespace muster {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

double since(int64_t earlier_ns, int64_t now_ns) {
  return static_cast<double>(std::max<int64_t>(0, now_ns - earlier_ns)) / 1e9;
}

// A launcher that has ended and was not waited for yet does not go on.
bool goes_on(const JobNote& job) {
  const Fd launcher = open_job(job);
  return launcher.valid() && !wait_for_job(launcher, std::chrono::milliseconds(0));
}

std::string this_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// The present, or the end of a launch that has ended. Units: nanoseconds since 1970.
int64_t moment_of(const std::optional<LaunchRecord>& launch) {
  if (launch && launch->ended)
    return std::llround(*launch->ended * 1e9);
  return nanoseconds_of(CLOCK_REALTIME);
}

std::optional<Plan> plan_of_run(const std::string& run_dir, std::vector<std::string>& problems) {
  const std::string path = run_dir + "/plan.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    return std::nullopt;
  try {
    return plan_from_json(read_small_plain_file(path), path);
  } catch (const Error& problem) {
    problems.push_back(cat("plan.json: ", problem.what()));
    return std::nullopt;
  }
}

std::optional<LaunchRecord> launch_of_run(const std::string& run_dir,
                                          std::vector<std::string>& problems) {
  try {
    const auto record = read_run_record(run_dir);
    if (record && !record->launches.empty())
      return record->launches.back();
  } catch (const Error& problem) {
    problems.push_back(cat("run.json: ", problem.what()));
  }
  return std::nullopt;
}

std::string devices_of(const RankPlan& rank) {
  if (rank.device.kind == DeviceAssignment::Kind::cpu)
    return rank.device.id();
  std::string text = cat("GPU ", rank.device.index.value);
  for (const DeviceAssignment& more : rank.more_devices)
    text += cat(", ", more.index.value);
  return text;
}

void add_plan(TopView& view, const Plan& plan) {
  for (const RankPlan& rank : plan.ranks)
    view.ranks.push_back({.rank = rank.rank, .host = rank.host, .device = devices_of(rank)});
}

// What this host's driver says of each rank's GPU.
void add_gpus(TopView& view, const Plan& plan, const std::set<int>& here) {
  const bool any = std::any_of(plan.ranks.begin(), plan.ranks.end(), [&](const RankPlan& rank) {
    return here.contains(rank.rank) && rank.device.kind == DeviceAssignment::Kind::gpu;
  });
  if (!any)
    return;
  const Inventory inventory = probe_this_machine({.detail = GpuDetail::full});
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    if (!here.contains(plan.ranks[i].rank))
      continue;
    for (const Gpu& gpu : inventory.hosts.at(0).gpus) {
      const bool instance =
          std::any_of(gpu.mig.begin(), gpu.mig.end(), [&](const MigInstance& mig) {
            return mig.uuid == plan.ranks[i].device.uuid;
          });
      if (gpu.uuid != plan.ranks[i].device.uuid && !instance)
        continue;
      view.ranks[i].gpu_percent = gpu.utilization_percent;
      view.ranks[i].gpu_total_bytes = gpu.memory_total_bytes;
      view.ranks[i].gpu_used_bytes =
          gpu.memory_total_bytes - std::min(gpu.memory_total_bytes, gpu.memory_free_bytes);
    }
  }
}

TopRank& rank_in(TopView& view, int number) {
  const auto found = std::find_if(view.ranks.begin(), view.ranks.end(), [&](const TopRank& rank) {
    return rank.rank == number;
  });
  if (found != view.ranks.end())
    return *found;
  view.ranks.push_back({.rank = number});
  return view.ranks.back();
}

// How the last attempt's ranks ended, where the launcher has told.
void add_ends(TopView& view, const LaunchRecord& launch) {
  if (launch.attempts.empty())
    return;
  view.attempt = launch.attempts.back().attempt;
  for (const WorkerExit& exit : launch.attempts.back().exits)
    rank_in(view, exit.rank).state = !exit.failed()          ? "ended"
                                     : exit.sent_signal != 0 ? "ended by muster"
                                                             : "failed";
}

// Of ranks here this host's own look is the better one.
void add_other_hosts(TopView& view, const std::set<int>& here) {
  for (TopRank& answer : ranks_of_other_hosts(view.run_dir, view.problems)) {
    const auto rank = std::find_if(view.ranks.begin(), view.ranks.end(), [&](const TopRank& known) {
      return known.rank == answer.rank;
    });
    if (rank != view.ranks.end() && !here.contains(answer.rank))
      *rank = std::move(answer);
  }
}

void find_unseen_hosts(TopView& view) {
  std::set<std::string> seen;
  std::set<std::string> all;
  for (TopRank& rank : view.ranks) {
    all.insert(rank.host);
    if (!rank.state.empty() || view.outcome == "done")
      seen.insert(rank.host);
    if (rank.state.empty())
      rank.state = view.outcome == "done" ? "ended" : "not seen";
  }
  for (const std::string& host : all) {
    if (!seen.contains(host))
      view.unseen_hosts.push_back(host);
  }
}

}  // namespace

bool TopView::hosts_have_answered() const {
  return unseen_hosts.empty() && std::none_of(ranks.begin(), ranks.end(), [](const TopRank& rank) {
           return rank.state == "elsewhere";
         });
}

TopSampler::TopSampler(std::string run_dir, std::optional<JobNote> job)
    : run_dir_(std::move(run_dir)), job_(std::move(job)) {}

void TopSampler::add_activity(TopRank& rank, const ActivityView& view, int64_t now_ns) {
  rank.host = rank.host.empty() ? view.host : rank.host;
  rank.device = rank.device.empty() ? view.device : rank.device;
  if (view.closed_ns)
    rank.state = "ended";
  if (view.steps > 0)
    rank.step = view.step;
  rank.loss = view.loss;
  Before& before = before_[rank.rank];
  const bool same = before.activity.opened_ns == view.opened_ns && before.activity.pid == view.pid;
  if (!same)
    before = Before{.activity = view,
                    .at = {},
                    .seconds_per_step = seconds_per_step(view),
                    .samples_per_second = muster::samples_per_second(view)};
  if (same && view.steps > before.activity.steps) {
    before.seconds_per_step = seconds_per_step(view);
    before.samples_per_second = muster::samples_per_second(view);
    const double seconds = since(before.activity.step_ns, view.step_ns);
    if (before.activity.step_ns > 0 && seconds > 0) {  // those since the last look
      before.seconds_per_step = seconds / static_cast<double>(view.steps - before.activity.steps);
      if (view.samples > 0)
        before.samples_per_second =
            static_cast<double>(view.samples - before.activity.samples) / seconds;
    }
    before.activity = view;
  }
  rank.seconds_per_step = before.seconds_per_step;
  rank.samples_per_second = before.samples_per_second;
  if (!view.closed_ns) {
    rank.doing = doing_text(view);
    rank.doing_seconds = since(doing_since_ns(view), now_ns);
  }
  if (const CallView* const call = last_ended_call(view)) {
    rank.last_call = call->text();
    if (call->end_ns)
      rank.last_call_seconds = since(*call->end_ns, now_ns);
  }
}

void TopSampler::add_process(TopRank& rank, const RankUsage& process, SteadyTime now) {
  rank.pid = process.pid;
  rank.state = process.stopped ? "stopped" : "running";
  rank.memory_bytes = process.memory_bytes;
  Before& before = before_[rank.rank];
  const bool same = before.pid == process.pid;
  const double seconds =
      same ? std::chrono::duration<double>(now - before.at).count() : process.age_seconds;
  const double used = process.cpu_seconds - (same ? before.cpu_seconds : 0);
  if (seconds > 0)
    rank.cpu_percent = std::max(0.0, used / seconds * 100);
  before.pid = process.pid;
  before.at = now;
  before.cpu_seconds = process.cpu_seconds;
}

TopView TopSampler::sample(Hosts hosts) {
  TopView view{.run_dir = run_dir_};
  view.running = job_ && goes_on(*job_);
  auto launch = launch_of_run(run_dir_, view.problems);
  if (view.running && launch && launch->ended)
    launch.reset();  // an earlier one's: another host keeps the record
  view.title = job_ ? job_->program : launch ? join(launch->argv, " ") : run_dir_;
  view.id = job_ ? job_->id : launch ? launch->run_id : "";
  const int64_t moment = moment_of(launch);
  if (launch)
    view.seconds = static_cast<double>(moment) / 1e9 - launch->began;
  if (!launch && job_)
    view.seconds = static_cast<double>(moment) / 1e9 - static_cast<double>(job_->since_seconds);
  if (launch && !view.running)
    view.outcome = launch->ended ? launch->outcome : "no end told";
  const auto plan = plan_of_run(run_dir_, view.problems);
  if (plan)
    add_plan(view, *plan);
  if (launch)
    add_ends(view, *launch);
  // A rank that went on in place may have another number than it was started with.
  std::map<int, int> ranks_by_pid;
  std::set<int> known;
  for (const ActivityView& rank : read_ranks(run_dir_, view.problems)) {
    view.attempt = std::max(view.attempt, rank.attempt);
    TopRank& row = rank_in(view, rank.rank);
    if (rank.attempt < view.attempt)
      continue;
    // By the clock of the file's host. This host's does not jump; of another's there is the time of
    // day alone.
    const bool is_here = view.running && rank.host == this_host();
    add_activity(row, rank, is_here ? activity_now() : moment - rank.unix_minus_monotonic_ns);
    if (is_here && !rank.closed_ns) {
      ranks_by_pid[static_cast<int>(rank.pid)] = rank.rank;
      known.insert(rank.rank);
    }
    if (row.state.empty())
      row.state = !view.running ? "killed" : rank.host == this_host() ? "gone" : "elsewhere";
  }
  std::set<int> here;
  const auto now = std::chrono::steady_clock::now();
  for (const RankUsage& process : find_rank_usage(run_dir_)) {
    const auto renamed = ranks_by_pid.find(process.pid);
    const int number = renamed == ranks_by_pid.end() ? process.rank : renamed->second;
    if (renamed == ranks_by_pid.end() && known.contains(number))
      continue;  // of an earlier attempt
    add_process(rank_in(view, number), process, now);
    here.insert(number);
  }
  if (plan)
    add_gpus(view, *plan, here);
  if (view.running && hosts == Hosts::all)
    add_other_hosts(view, here);
  std::sort(view.ranks.begin(), view.ranks.end(), [](const TopRank& a, const TopRank& b) {
    return a.rank < b.rank;
  });
  find_unseen_hosts(view);
  return view;
}

}  // namespace muster
