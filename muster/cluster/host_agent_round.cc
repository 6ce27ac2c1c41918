// A round on this host, from the order that starts it to the report of its end. The ranks run in
// the process set (run_local_ranks), whose loop goes on to take orders. Where failed ranks are
// replaced, the others go on in the next round, and so one run of the process set can be of several
// rounds. What a host reports of a round decides what the coordinator orders next.
#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/cluster/host_agent_state.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/local_ranks.h"
#include "muster/supervise/child.h"

namespace muster {
namespace {

// The ends of ranks whose round was over before this host had begun it.
RankExits not_started(const RankSpecs& specs) {
  RankExits exits;
  for (const RankSpec& spec : specs) {
    RankExit exit{.rank = spec.rank,
                  .local_rank = spec.local_rank,
                  .host = spec.host,
                  .device = spec.device,
                  .started = false,
                  .sent_signal = SIGTERM};
    exit.cause = describe_end(exit);
    exits.push_back(exit);
  }
  return exits;
}

}  // namespace

// Returns the exit code if this host leaves the job with the round's end.
std::optional<int> HostAgent::run_round(const Order& order) {
  if (!order.host_index) {
    be_spare(order);
    return std::nullopt;
  }
  const Report end = run_to_the_end(order);
  if (job_)
    job_->end_attempt(end.exits, end.error);
  if (lost_)
    return std::nullopt;
  if (job_)
    job_->leave_telemetry(end.round);
  return tell_end(end);
}

// Orders are looked for first, so that a round that is over already is not announced.
void HostAgent::be_spare(const Order& order) {
  if (job_)
    job_->become_spare();
  take_orders();
  const bool is_history = stopped_round_ >= order.round || !pending_.empty();
  if (!is_history)
    log_info("the job has its ", plural(order.num_hosts, "host"), "; this one is a spare");
}

// Runs the ranks of this host. Returns the report of their end, or of why they could not start.
Report HostAgent::run_to_the_end(const Order& order) {
  Report end{.kind = Report::Kind::ended, .round = order.round};
  try {
    if (!job_)
      set_up(order);
    job_->begin_round(order);
    end.exits = run_ranks(order, &end.stopped_by);
    look_at_gpus(end);
  } catch (const Error& error) {
    end.error = error.message();
    end.exit_code = exit_code_of(error);
  }
  // The ranks may have gone on in other rounds since.
  const int last_round = std::exchange(running_round_, 0);
  if (last_round != 0)
    end.round = last_round;
  return end;
}

// Once, when this host takes part for the first time.
void HostAgent::set_up(const Order& order) {
  job_ = std::make_unique<HostJob>(
      options_,
      cluster_,
      HostInJob{
          .id = member_->id(), .host = host_, .store = rendezvous_.store, .sampler = sampler_},
      std::move(ranks_),
      order);
  if (options_.failure_policy == FailurePolicy::replace)
    replacing_ = replacing_over(
        job_->setup().open_store(), job_->setup().facts().work_dir, options_.rejoin_within);
  replacing_.replace = [this](const RankFailures& failures) {
    return ask_to_replace(failures);
  };
  replacing_.on_given_up = [this](const std::string& why) {
    give_up_in_place(why);
  };
}

// Blocking: until all ranks of this host have ended. Throws: Error where no rank is the cause.
RankExits HostAgent::run_ranks(const Order& order, int* stopped_by) {
  const auto specs = job_->rank_specs(order);
  if (specs.empty())
    return {};
  replacing_.others_run_elsewhere = order.num_hosts > 1;
  running_round_ = order.round;
  take_orders();  // it may have been stopped already
  for (const Order& early : std::exchange(early_signals_, {})) {
    if (early.round == running_round_)
      processes_->tell_all(early.signal);
  }
  if (stopped_round_ >= order.round || !pending_.empty() || lost_)
    return not_started(specs);
  const bool has_rank_0 = specs.front().rank == 0;
  GroupRules rules{.shutdown_timeout = options_.shutdown_timeout,
                   .master_port = has_rank_0 ? watched_port(options_, job_->setup().facts()) : 0,
                   .stopped_for = options_.stopped_timeout,
                   .is_again = attempt_of(order.round) > 0,
                   .is_awaited = [this] { return is_awaited(); }};
  bool told = false;  // the first is what the others must know at once
  if (options_.failure_policy == FailurePolicy::replace) {
    rules.replacing = &replacing_;
  } else {
    rules.on_rank_failed = [&](const RankExit& exit) {
      if (lost_ || std::exchange(told, true))
        return;
      member_->report({.kind = Report::Kind::failing, .round = order.round, .exits = {exit}});
    };
  }
  const GroupResult result =
      run_local_ranks(*processes_, specs, job_->setup().inherited_fds(), rules);
  if (!result.fault.empty())
    throw unavailable(result.fault);
  *stopped_by = result.stopped_by;
  const bool was_waiting = result.exits.empty() && result.stopped_by == 0;
  return was_waiting ? not_started(specs) : brief(result.exits);
}

// The others wait for the end of our ranks, or have gone on without us.
bool HostAgent::is_awaited() const {
  return lost_ || !pending_.empty() || stopped_round_ >= running_round_;
}

// A signal that ended the ranks of the host that serves ends the job for all. Another host leaves
// an elastic job by itself.
std::optional<int> HostAgent::tell_end(Report end) {
  const bool was_stopped = end.stopped_by != 0;
  const bool serves = rendezvous_.server != nullptr;
  if (was_stopped && serves) {
    leaving_ = true;
    member_->report({.kind = Report::Kind::stop, .stopped_by = end.stopped_by});
    end.stopped_by = 0;
  }
  own_error_ = end.error;
  member_->report(end);
  if (!was_stopped || serves || !cluster_.elastic())
    return std::nullopt;
  if (job_)
    job_->leave();
  hand_over();
  log_info("stopped by ",
           signal_name(end.stopped_by),
           "; every rank here has ended, and this host has left the job");
  return have_stopped(end.exits) ? kStoppedExitCode : 128 + end.stopped_by;
}

// After a failure of any rank here: a host with a GPU that has gone bad takes no more part.
void HostAgent::look_at_gpus(Report& end) {
  const bool has_failed = any_of(end.exits, &RankExit::failed);
  if (!has_failed || lost_ || end.stopped_by != 0)
    return;
  const BadGpus bad = bad_gpus();
  if (bad.empty())
    return;
  end.error = cat(describe(bad), "; set aside");
  end.exit_code = 1;
}

// Blocking: as GpuWatch::look.
BadGpus HostAgent::bad_gpus() const {
  if (!options_.looks_at_gpus)
    return {};
  return gpus_.look(job_->plan(), job_->setup().facts().host_index);
}

// Our ranks run, and go on in this round, or end where they have no part in it. False: the round
// begins like others.
bool HostAgent::go_on_in_place(const Order& order) {
  if (order.kind != Order::Kind::start || !order.in_place || !replacing_.go_on)
    return false;
  if (!order.host_index) {
    job_->become_spare();
    processes_->end_all();
    return false;
  }
  running_round_ = order.round;
  if (processes_->is_ending() && !processes_->stops_as_asked())
    return true;
  followed_failures_ = order.exits;
  job_->change_round(order);
  replacing_.others_run_elsewhere = order.num_hosts > 1;
  replacing_.go_on({.number = attempt_of(order.round),
                    .specs = job_->rank_specs(order),
                    .pause = order.pause,
                    .why = order.reason});
  return true;
}

// The coordinator decides what follows; until then the others go on.
bool HostAgent::ask_to_replace(const RankFailures& failures) {
  if (lost_ || !bad_gpus().empty())
    return false;
  member_->report(
      {.kind = Report::Kind::failing, .round = running_round_, .exits = brief(failures.failed)});
  return true;
}

// The ranks of all hosts end, and start again: what failed before is what the round fails of.
void HostAgent::give_up_in_place(const std::string& why) {
  if (lost_)
    return;
  member_->report({.kind = Report::Kind::failing,
                   .round = running_round_,
                   .exits = followed_failures_,
                   .error = why});
}

}  // namespace muster
