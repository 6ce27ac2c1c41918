// One process for each host. It waits for the coordinator's orders and carries them out in turn: a
// start order runs the ranks of this host to their end (run_local_ranks), and while they run, the
// event loop of the process set takes further orders, so that ranks can be stopped or go on in
// another round. The host that serves the store coordinates too, in a thread of its own.
#include "muster/cluster/host_agent.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/version.h"
#include "muster/cluster/coordinator_options.h"
#include "muster/cluster/coordinator_thread.h"
#include "muster/cluster/host_rendezvous.h"
#include "muster/cluster/member.h"
#include "muster/launch/check_launch.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/gpu_watch.h"
#include "muster/launch/job_activity.h"
#include "muster/launch/job_plan.h"
#include "muster/launch/job_report.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/job_start.h"
#include "muster/launch/local_ranks.h"
#include "muster/launch/replacement.h"
#include "muster/launch/run_recorder.h"
#include "muster/supervise/child.h"
#include "muster/supervise/process_set.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kTakeLeave{5};

// The machine as far as the job needs to know it, under the name that the job gives it.
Host this_host(const LaunchOptions& options, const ClusterOptions& cluster) {
  Host host = discover(options).hosts.at(0);
  if (!cluster.host_name.empty())
    host.name = cluster.host_name;
  return host;
}

// The ranks' secret is another than the agents': a rank must not be able to give orders.
Secret ranks_secret(const HostRendezvous& rendezvous) {
  return rendezvous.secret.empty() ? Secret() : rendezvous.secret.derive("ranks");
}

// The ends of ranks whose round was over before this host had begun it.
std::vector<RankExit> not_started(const std::vector<RankSpec>& specs) {
  std::vector<RankExit> exits;
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

std::string in_words(const RankRange& ranks) {
  if (ranks.count == 0)
    return "no ranks";
  return cat("ranks ", ranks.first, " to ", ranks.first + ranks.count - 1);
}

class HostAgent {
 public:
  HostAgent(const LaunchOptions& options, const ClusterOptions& cluster, RankSampler sampler)
      : options_(options),
        cluster_(cluster),
        sampler_(std::move(sampler)),
        host_(this_host(options_, cluster)),
        gpus_(host_),
        rendezvous_(open_host_rendezvous(cluster)),
        processes_({.stop_signals = options.stop_signals, .goes_on_because = kGoesOnBecause}),
        ranks_(RankRendezvousOptions{.address = rendezvous_.address,
                                     .secret = ranks_secret(rendezvous_),
                                     .no_auth = rendezvous_.secret.empty()}) {
    if (rendezvous_.server)
      coordinate(false);
    member_ = std::make_unique<Member>(
        rendezvous_.store,
        facts(),
        MemberOptions{.silence = cluster_.silence, .elects = cluster_.backend == "etcd"});
    processes_.loop().watch_readable(member_->fd(), [this] { take_orders(); });
    watch_for_silence();
  }

  // Blocking: until the job is over, or this host's part in it. Returns the exit code.
  int run() {
    for (;;) {
      if (pending_.empty()) {
        if (const auto code = wait_for_order())
          return *code;
      }
      const Order order = std::move(pending_.front());
      pending_.pop_front();
      switch (order.kind) {
        case Order::Kind::start:
          if (const auto code = run_round(order))
            return *code;
          break;
        case Order::Kind::finish:
          return finish(order);
        case Order::Kind::refuse:
          log(LogLevel::error, order.reason);
          return order.exit_code;
        case Order::Kind::stop:
          break;  // of a round that has ended here already
      }
    }
  }

 private:
  // This host decides for all from now on.
  void coordinate(bool take_over) {
    coordinator_ = std::make_unique<CoordinatorThread>(
        rendezvous_.store,
        rules_of(options_, cluster_),
        planner_of(options_),
        CoordinatorThreadOptions{.silence = cluster_.silence, .take_over = take_over});
  }

  // All that the coordinator and the planner need to know of this host.
  HostFacts facts() const {
    return {.id = make_uuid(),
            .min_hosts = cluster_.min_hosts,
            .max_hosts = cluster_.max_hosts,
            .node_rank = cluster_.node_rank,
            .nproc = options_.request.nproc_per_node,
            .address = rendezvous_.address,
            .master_port = ranks_.master_port(),
            .store = ranks_.store(),
            .muster_version = version(),
            .masks = inherited_masks(),
            .host = host_};
  }

  // Called by the loop, also while ranks run.
  void take_orders() {
    const Member::Part part = member_->take_part();
    if (part != Member::Part::none)
      coordinate(part == Member::Part::successor);
    while (auto order = member_->take()) {
      if (is_for_us(*order))
        take(std::move(*order));
    }
    look_for_silence();
  }

  // A refusal is for one host, all else for every host.
  bool is_for_us(const Order& order) const {
    if (order.kind != Order::Kind::refuse)
      return true;
    return !order.hosts.empty() && order.hosts[0] == member_->id();
  }

  // The others wait for the end of our ranks, or have gone on without us.
  bool is_awaited() const { return lost_ || !pending_.empty() || stopped_round_ >= running_round_; }

  // Acts at once on what concerns the ranks that run; run() does the rest in its turn.
  void take(Order order) {
    if (order.kind == Order::Kind::stop) {
      stopped_round_ = order.round;
      if (record_)
        record_->explain(attempt_of(order.round), order.reason);
    }
    if (ends_our_ranks(order)) {
      if (!cluster_.remote && !order.reason.empty())
        log(LogLevel::info, cat("ending this round's ranks: ", order.reason));
      processes_.end_all();
    }
    if (order.kind != Order::Kind::stop && !go_on_in_place(order))
      pending_.push_back(std::move(order));
  }

  // A start order ends no ranks: it comes when they have ended, or go on in place.
  bool ends_our_ranks(const Order& order) const {
    if (running_round_ == 0 || order.kind == Order::Kind::start)
      return false;
    return order.kind != Order::Kind::stop || order.round == running_round_;
  }

  // This host's number among those that take part; nothing: it is a spare.
  std::optional<int> host_index_in(const Order& order) const {
    const auto at = std::ranges::find(order.hosts, member_->id());
    if (at == order.hosts.end())
      return std::nullopt;
    return static_cast<int>(at - order.hosts.begin());
  }

  // Our ranks run, and go on in this round, or end where they have no part in it. False: the round
  // begins like others.
  bool go_on_in_place(const Order& order) {
    if (order.kind != Order::Kind::start || !order.in_place || !replacing_.go_on)
      return false;
    const auto host_index = host_index_in(order);
    if (!host_index) {
      telemetry_.reset();
      processes_.end_all();
      return false;
    }
    running_round_ = order.round;
    if (processes_.is_ending())
      return true;
    followed_failures_ = order.exits;
    job_->change_plan(order.plan);
    take_place(order, *host_index);
    if (record_)
      record_->end_attempt(order.exits, "");
    begin_record(order, *host_index);
    replacing_.go_on(
        {.number = attempt_of(order.round),
         .specs = make_rank_specs(order.plan, options_, job_->facts(), attempt_of(order.round)),
         .pause = order.pause,
         .why = order.reason});
    return true;
  }

  // Nobody will give orders any more. The ranks have the time that Silence promises to the others.
  void be_lost(const std::string& why) {
    if (lost_)
      return;
    lost_ = true;
    why_lost_ = why;
    if (running_round_ == 0)
      return;
    log(LogLevel::error, "this host has lost the others; ending its ranks");
    processes_.end_all();
    processes_.loop().call_at(Clock::now() + cluster_.silence.grace(),
                              [this] { processes_.end_all_now(); });
  }

  // Returns the exit code if no order will come, or nothing once there is one.
  std::optional<int> wait_for_order() {
    for (;;) {
      take_orders();
      if (!pending_.empty())
        return std::nullopt;
      if (lost_) {
        const char* const lost = cluster_.backend == "etcd"
                                     ? "etcd is gone: "
                                     : "the host that serves the rendezvous is gone: ";
        // The others may be through, and gone, before they have said that this host is set aside.
        if (!own_error_.empty())
          log(LogLevel::error, own_error_);
        log(LogLevel::error, cat(lost, why_lost_));
        return 1;
      }
      const int signal = processes_.stop_requested();
      if (signal != 0 && !std::exchange(leaving_, true)) {
        if (const auto code = leave(signal))
          return code;
      }
      processes_.loop().run_once(std::nullopt);
    }
  }

  // A signal came while no ranks ran here. The host that serves ends the job for all; any host does
  // that where none can be spared.
  std::optional<int> leave(int signal) {
    if (rendezvous_.server || !cluster_.elastic()) {
      member_->report({.kind = Report::Kind::stop, .stopped_by = signal});
      return std::nullopt;  // the order to finish follows
    }
    if (telemetry_)
      telemetry_->finish();
    member_->report({.kind = Report::Kind::leave, .stopped_by = signal});
    hand_over();
    log(LogLevel::info, cat("stopped by ", signal_name(signal), "; this host has left the job"));
    return 128 + signal;
  }

  // Returns the exit code if this host leaves the job with the round's end.
  std::optional<int> run_round(const Order& order) {
    const auto host_index = host_index_in(order);
    if (!host_index) {
      be_spare(order);
      return std::nullopt;
    }
    const Report end = run_to_the_end(order, *host_index);
    if (record_)
      record_->end_attempt(end.exits, end.error);
    if (lost_)
      return std::nullopt;
    if (telemetry_)
      telemetry_->leave(attempt_of(end.round));
    return tell_end(end);
  }

  // Orders are looked for first, so that a round that is over already is not announced.
  void be_spare(const Order& order) {
    telemetry_.reset();
    take_orders();
    const bool is_history = stopped_round_ >= order.round || !pending_.empty();
    if (!is_history)
      log(LogLevel::info,
          cat("the job has its ", order.hosts.size(), " hosts; this one is a spare"));
  }

  // Runs the ranks of this host. Returns the report of their end, or of why they could not start.
  Report run_to_the_end(const Order& order, int host_index) {
    Report end{.kind = Report::Kind::ended, .round = order.round};
    try {
      prepare(order, host_index);
      announce(order, host_index);
      begin_record(order, host_index);
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

  // A signal that ended the ranks of the host that serves ends the job for all. Another host leaves
  // an elastic job by itself.
  std::optional<int> tell_end(Report end) {
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
    if (telemetry_)
      telemetry_->finish();
    hand_over();
    log(LogLevel::info,
        cat("stopped by ",
            signal_name(end.stopped_by),
            "; every rank here has ended, and this host has left the job"));
    return have_stopped(end.exits) ? kStoppedExitCode : 128 + end.stopped_by;
  }

  // After a failure of any rank here: a host with a GPU that has gone bad takes no more part.
  void look_at_gpus(Report& end) {
    const bool has_failed = std::ranges::any_of(end.exits, &RankExit::failed);
    if (!has_failed || lost_ || end.stopped_by != 0)
      return;
    const std::vector<BadGpu> bad = bad_gpus();
    if (bad.empty())
      return;
    end.error = cat(describe(bad), "; set aside");
    end.exit_code = 1;
  }

  // Blocking: as GpuWatch::look.
  std::vector<BadGpu> bad_gpus() const {
    if (!options_.looks_at_gpus)
      return {};
    return gpus_.look(plan_, job_->facts().host_index);
  }

  // Another host coordinates from now on.
  void hand_over() {
    if (record_)
      record_->hand_over();
    if (!coordinator_)
      return;
    coordinator_.reset();
    member_->resign();
  }

  // Once, when this host takes part for the first time.
  void set_up(const Order& order) {
    if (options_.run_dir.empty())
      options_.run_dir = "runs/" + order.run_folder;
    job_ = std::make_unique<JobSetup>(options_, std::move(ranks_), host_.num_cores, order.launch);
    if (options_.failure_policy == FailurePolicy::replace)
      replacing_ =
          replacing_over(job_->open_store(), job_->facts().work_dir, options_.rejoin_within);
    replacing_.replace = [this](const RankFailures& failures) {
      return ask_to_replace(failures);
    };
    replacing_.on_given_up = [this](const std::string& why) {
      give_up_in_place(why);
    };
  }

  // Throws: Error where this host cannot start its ranks; that is reported.
  void prepare(const Order& order, int host_index) {
    if (!job_)
      set_up(order);
    job_->use_plan(order.plan, {});  // lets the last round's leases go
    job_->use_plan(order.plan, lease_host(order.plan, host_index, options_));
    take_place(order, host_index);
  }

  // Takes over all that another round may change for this host, in place or not.
  void take_place(const Order& order, int host_index) {
    plan_ = order.plan;
    job_->use_place(host_index, order.master_addr, order.master_port, order.store);
    job_->count_restarts(order.restart_count);
    job_->use_launch(order.launch);
    registration_.reset();
    registration_ =
        std::make_unique<JobRegistration>(job_note(options_, order.plan, job_->facts()));
    begin_telemetry(order);
  }

  // Telemetry belongs to a round: its hosts and their ranks.
  void begin_telemetry(const Order& order) {
    const std::string& run_dir = job_->facts().work_dir;
    keep_copies_of_launch(run_dir, order.launch);
    std::vector<RankRange> ranks;
    for (int i = 0; i < std::ssize(order.hosts); ++i)
      ranks.push_back(ranks_on_host(order.plan, i));
    telemetry_.reset();  // it removes what the next one makes
    telemetry_ = std::make_unique<HostTelemetry>(rendezvous_.store,
                                                 HostTelemetryOptions{.host = member_->id(),
                                                                      .hosts = order.hosts,
                                                                      .ranks = std::move(ranks),
                                                                      .run_dir = run_dir,
                                                                      .launch = order.launch,
                                                                      .sampler = sampler_});
  }

  // The first of the job's hosts keeps the record for all.
  void begin_record(const Order& order, int host_index) {
    if (host_index != 0) {
      if (record_)
        record_->hand_over();
      record_.reset();
      return;
    }
    if (!record_)
      record_ = std::make_unique<RunRecorder>(options_, job_->facts(), host_.name, nullptr);
    record_->begin_attempt(attempt_of(order.round), order.in_place);
  }

  // A plan is announced once, however often it is started.
  void announce(const Order& order, int host_index) {
    if (order.plan == announced_)
      return;
    announced_ = order.plan;
    if (host_index == 0) {
      show_plan(order.plan, options_, STDERR_FILENO);
      const std::string unknown = unknown_local_ranks(order.plan, options_);
      if (!unknown.empty())
        log(LogLevel::warn, unknown);
    } else if (!cluster_.remote && !options_.quiet) {
      log(LogLevel::info,
          cat("host ",
              host_index,
              " of ",
              order.hosts.size(),
              ": ",
              in_words(ranks_on_host(order.plan, host_index)),
              " of ",
              order.plan.ranks.size(),
              "; rank 0 is at ",
              order.master_addr));
    }
  }

  // Blocking: until all ranks of this host have ended. Throws: Error where no rank is the cause.
  std::vector<RankExit> run_ranks(const Order& order, int* stopped_by) {
    const auto specs =
        make_rank_specs(order.plan, options_, job_->facts(), attempt_of(order.round));
    if (specs.empty())
      return {};
    running_round_ = order.round;
    take_orders();  // it may have been stopped already
    if (stopped_round_ >= order.round || !pending_.empty() || lost_)
      return not_started(specs);
    const bool has_rank_0 = specs.front().rank == 0;
    GroupRules rules{.shutdown_timeout = options_.shutdown_timeout,
                     .master_port = has_rank_0 ? watched_port(options_, job_->facts()) : 0,
                     .stopped_for = options_.stopped_timeout,
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
    const GroupResult result = run_local_ranks(processes_, specs, job_->inherited_fds(), rules);
    if (!result.fault.empty())
      throw Error(ErrorCode::unavailable, result.fault);
    *stopped_by = result.stopped_by;
    return brief(result.exits);
  }

  // The coordinator decides what follows; until then the others go on.
  bool ask_to_replace(const RankFailures& failures) {
    if (lost_ || !bad_gpus().empty())
      return false;
    member_->report(
        {.kind = Report::Kind::failing, .round = running_round_, .exits = brief(failures.failed)});
    return true;
  }

  // The ranks of all hosts end, and start again: what failed before is what the round fails of.
  void give_up_in_place(const std::string& why) {
    if (lost_)
      return;
    member_->report({.kind = Report::Kind::failing,
                     .round = running_round_,
                     .exits = followed_failures_,
                     .error = why});
  }

  // The job is over. The host that coordinates waits until the others have taken leave.
  int finish(const Order& order) {
    const bool stopped = order.exit_code == kStoppedExitCode && have_stopped(order.exits);
    if (telemetry_) {
      telemetry_->collect(attempt_of(order.round));
      telemetry_->finish();
    }
    if (record_) {
      if (!order.exits.empty())
        record_->end_attempt(order.exits, "");
      record_->finish(order.exit_code, outcome_of(order.exit_code, order.exits));
    }
    if (job_)
      report_end(order, stopped);
    if (!order.reason.empty() && !cluster_.remote)
      log(stopped ? LogLevel::info : LogLevel::error, order.reason);
    member_->report({.kind = Report::Kind::leave});
    if (coordinator_ && coordinator_->wait(kTakeLeave))
      clean_up(*rendezvous_.store);
    return order.exit_code;
  }

  // An agent of ssh says nothing: its launcher does.
  void report_end(const Order& order, bool stopped) {
    const JobFacts& facts = job_->facts();
    const int attempt = attempt_of(order.round);
    tell_activity(facts, attempt, options_.quiet, facts.host_index == 0);
    if (!cluster_.remote && !stopped)
      report_failure(order.exits, facts, attempt, options_.max_restarts);
    if (order.exit_code == 0) {
      job_->remove_unused_folders();
    } else {  // the folder gets a failure.json, by one of the hosts that share it
      job_->remove_empty_folders();
    }
  }

  // The silence of the store is noticed only if somebody asks again and again.
  void watch_for_silence() {
    processes_.loop().call_at(Clock::now() + cluster_.silence.step(), [this] {
      look_for_silence();
      watch_for_silence();
    });
  }

  // A coordinator that can give no more orders, not even the last one, leaves this host to itself.
  void look_for_silence() {
    const std::string why = member_->lost();
    if (!why.empty())
      be_lost(why);
    if (coordinator_ && coordinator_->broken())
      be_lost("its coordinator cannot reach the store");
  }

  LaunchOptions options_;
  const ClusterOptions cluster_;
  const RankSampler sampler_;
  const Host host_;
  const GpuWatch gpus_;
  // It is opened before signals are ours: until there are ranks, they simply end this process.
  HostRendezvous rendezvous_;
  ProcessSet processes_;
  RankRendezvous ranks_;  // moved into job_
  std::unique_ptr<CoordinatorThread> coordinator_;
  std::unique_ptr<Member> member_;
  std::unique_ptr<JobSetup> job_;
  Replacing replacing_;
  std::unique_ptr<JobRegistration> registration_;
  std::unique_ptr<HostTelemetry> telemetry_;
  std::unique_ptr<RunRecorder> record_;  // where this is the first of the job's hosts
  std::deque<Order> pending_;
  Plan plan_, announced_;
  int stopped_round_ = 0;
  int running_round_ = 0;
  std::vector<RankExit> followed_failures_;  // for which the round has begun in place
  bool lost_ = false;
  std::string own_error_ = {};  // of the last round's end here
  std::string why_lost_;
  bool leaving_ = false;
};

}  // namespace

int run_host_agent(const LaunchOptions& options,
                   const ClusterOptions& cluster,
                   RankSampler sampler) {
  check_launch(options);
  program_paths(options);
  return HostAgent(options, cluster, std::move(sampler)).run();
}

}  // namespace muster
