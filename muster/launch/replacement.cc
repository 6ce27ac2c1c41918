#include "muster/launch/replacement.h"

#include <algorithm>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/gpu_watch.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/restart.h"
#include "muster/launch/run_recorder.h"
#include "muster/store/generations.h"

namespace muster {

namespace {

std::string failures_in_words(const std::vector<WorkerExit>& failed) {
  std::vector<std::string> each;
  each.reserve(failed.size());
  for (const WorkerExit& exit : failed) each.push_back(cat("rank ", exit.rank, ": ", cause_and_error(exit)));
  return join(each, ", ");
}

}  // namespace

std::string obstacle_to_replacing(const RankFailures& failures) {
  if (failures.left.empty()) return "no rank is left to go on";
  if (failures.some_have_ended) return "another rank has ended already";
  for (const WorkerExit& exit : failures.failed) {
    // Such a rank had the time to come to the next generation: its program cannot.
    if (lost_a_peer(exit))
      return cat("rank ", exit.rank,
                 " ended because it had lost another; only programs of muster::run keep their processes");
  }
  return "";
}

std::string describe_replacing(const RankFailures& failures, std::chrono::milliseconds pause, int used,
                               int budget) {
  const bool one = failures.failed.size() == 1;
  return cat(failures_in_words(failures.failed), one ? "; a replacement is" : "; replacements are",
             " started", pause.count() > 0 ? cat(" in ", format_duration(pause)) : "",
             ", the others keep their processes (", used, " of ", budget, " restarts)");
}

InPlaceRestarts::InPlaceRestarts(const Plan& plan, const LaunchOptions& options, JobSetup& job,
                                 Restarts& restarts, RunRecorder& record, int& attempt, const GpuWatch* gpus)
    : plan_(plan),
      options_(options),
      job_(job),
      restarts_(restarts),
      record_(record),
      attempt_(attempt),
      gpus_(gpus),
      store_(job.open_store()) {}

Replacing InPlaceRestarts::rules() {
  return {.replace = [this](const RankFailures& failures) { return replace(failures); },
          .has_come = [this](int rank) { return has_come_to_generation(*store_, attempt_, rank); },
          .patience = options_.rejoin_within};
}

std::optional<Replacements> InPlaceRestarts::replace(const RankFailures& failures) {
  const auto has_stopped = [](const WorkerExit& exit) {
    return exit.signal == 0 && exit.exit_code == kStoppedExitCode;
  };
  // Ranks that were asked to stop do so one after the other.
  if (std::any_of(failures.failed.begin(), failures.failed.end(), has_stopped)) return std::nullopt;
  if (!restarts_.has_budget()) return std::nullopt;
  if (const std::string obstacle = obstacle_to_replacing(failures); !obstacle.empty()) {
    log(LogLevel::warn, cat("not replaced in place: ", obstacle));
    return std::nullopt;
  }
  // The others keep their devices, and the ranks' devices go together: a bad one takes a restart of all.
  if (const auto bad = gpus_ == nullptr ? std::vector<BadGpu>() : gpus_->look(plan_, 0); !bad.empty()) {
    log(LogLevel::warn, cat("not replaced in place: ", describe(bad)));
    return std::nullopt;
  }
  const auto pause = restarts_.use();
  log(LogLevel::warn, describe_replacing(failures, pause, restarts_.used(), restarts_.budget()));
  record_.end_attempt(failures.failed, "");
  job_.count_restarts(++attempt_);
  announce_generation(*store_, attempt_, static_cast<int>(plan_.ranks.size()),
                      failures_in_words(failures.failed));
  Replacements next{.specs = make_worker_specs(plan_, options_, job_.facts(), attempt_), .pause = pause};
  std::erase_if(next.specs, [&](const WorkerSpec& spec) { return !failures.to_start.contains(spec.rank); });
  record_.begin_attempt(attempt_, /*in_place=*/true);
  return next;
}

}  // namespace muster
