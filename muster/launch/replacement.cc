// The words between a launcher and the ranks of a job in place go through the launcher's store, one
// key a process. InPlaceRestarts decides for one host: whether failed ranks can be replaced, and on
// whose account.
#include "muster/launch/replacement.h"

#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/launch/cause.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/gpu_watch.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/restart.h"
#include "muster/launch/run_recorder.h"
#include "muster/store/generations.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

// Whether the main thread's spans say so. A rank that has no such file is not known to save.
bool is_in_checkpoint(const std::string& activity_file) {
  try {
    const ActivityView view = read_activity(activity_file);
    const ThreadView* const main = view.main();
    return main != nullptr &&
           element_with(main->spans, Category::checkpoint, &SpanView::category) != nullptr;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

// A process has the name of its activity file.
Replacing replacing_over(SharedStore store, const std::string& run_dir, milliseconds patience) {
  return {
      .announce =
          [store](const std::string& process, const NextGeneration& next, const RankSpec& spec) {
            announce_generation(*store,
                                process,
                                {.number = next.number,
                                 .why = next.why,
                                 .variables = generation_variables(spec.environment)});
          },
      .has_come =
          [store](const std::string& process, int generation) {
            return has_come_to_generation(*store, process, generation);
          },
      .is_saving =
          [run_dir](const std::string& process) {
            return is_in_checkpoint(cat(run_dir, "/activity/", process));
          },
      .patience = patience};
}

// A rank that ended because it had lost another had the time to come to the next generation. That
// it did not means that its program cannot.
std::string obstacle_of_exits(const RankExits& failed) {
  const RankExit* const unable = element_where(failed, lost_a_peer);
  if (unable == nullptr)
    return "";
  return cat(
      "rank ",
      unable->rank,
      " ended because it had lost another; only programs of muster::run keep their processes");
}

std::string obstacle_to_replacing(const RankFailures& failures) {
  if (failures.left.empty())
    return "no rank is left to go on";
  if (failures.some_have_ended)
    return "another rank has ended already";
  return obstacle_of_exits(failures.failed);
}

std::string failures_in_words(const RankExits& failed) {
  const auto in_words = [](const RankExit& exit) {
    return cat("rank ", exit.rank, ": ", cause_and_error(exit));
  };
  return join(mapped(failed, in_words), ", ");
}

// `used` of `budget` counts the restarts of all ranks too.
std::string describe_replacing(const RankExits& failed, milliseconds pause, int used, int budget) {
  return cat(failures_in_words(failed),
             word_for(failed.size(), "; a replacement is", "; replacements are"),
             " started",
             pause_text(pause),
             ", the others keep their processes (",
             used,
             " of ",
             budget,
             " restarts)");
}

InPlaceRestarts::InPlaceRestarts(const Plan& plan,
                                 const LaunchOptions& options,
                                 JobSetup& job,
                                 Restarts& restarts,
                                 RunRecorder& record,
                                 int& attempt,
                                 const GpuWatch* gpus)
    : plan_(plan),
      options_(options),
      job_(job),
      restarts_(restarts),
      record_(record),
      attempt_(attempt),
      gpus_(gpus),
      rules_(replacing_over(job.open_store(), job.facts().work_dir, options.rejoin_within)) {
  rules_.replace = [this](const RankFailures& failures) {
    return replace(failures);
  };
}

void InPlaceRestarts::explain(RankExits& exits) {
  put_replaced_first(exits, std::exchange(replaced_, {}));
}

// A refusal whose reason the user cannot see is said. The attempt before is recorded as ended by
// the failures before the next one begins.
bool InPlaceRestarts::replace(const RankFailures& failures) {
  // Ranks that were asked to stop do so one after the other.
  if (some_have_stopped(failures.failed) || !restarts_.has_budget())
    return false;
  if (const auto obstacle = obstacle_to_replacing(failures); !obstacle.empty()) {
    log_warning("not replaced in place: ", obstacle);
    return false;
  }
  // The others keep their devices, and the ranks' devices go together: a bad one takes a restart of
  // all.
  const auto bad = gpus_ == nullptr ? BadGpus() : gpus_->look(plan_, 0);
  if (!bad.empty()) {
    log_warning("not replaced in place: ", describe(bad));
    return false;
  }
  replaced_ = failures.failed;
  const auto pause = restarts_.use();
  log_warning(describe_replacing(failures.failed, pause, restarts_.used(), restarts_.budget()));
  record_.end_attempt(failures.failed, "");
  job_.count_restarts(++attempt_);
  rules_.go_on({.number = attempt_,
                .specs = make_rank_specs(plan_, options_, job_.facts(), attempt_),
                .pause = pause,
                .why = failures_in_words(failures.failed)});
  record_.begin_attempt(attempt_, /*in_place=*/true);
  return true;
}

}  // namespace muster
