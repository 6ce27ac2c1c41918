#include "muster/cluster/host_agent.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/version.h"
#include "muster/cluster/coordinator_options.h"
#include "muster/cluster/coordinator_thread.h"
#include "muster/cluster/host_rendezvous.h"
#include "muster/cluster/member.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/gpu_watch.h"
#include "muster/launch/job_activity.h"
#include "muster/launch/job_plan.h"
#include "muster/launch/job_report.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/job_start.h"
#include "muster/launch/replacement.h"
#include "muster/launch/run_recorder.h"
#include "muster/launch/worker_group.h"
#include "muster/supervise/child.h"
#include "muster/supervise/process_set.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kTakeLeave{5};

Host this_host(const LaunchOptions& options, const ClusterOptions& cluster) {
  Host host = discover(options).hosts.at(0);
  if (!cluster.host_name.empty())
    host.name = cluster.host_name;
  return host;
}

Secret ranks_secret(const HostRendezvous& rendezvous) {
  // Not the agents' own: a rank must not be able to give orders.
  return rendezvous.secret.empty() ? Secret() : rendezvous.secret.derive("ranks");
}

// The ends of ranks whose round was over before this host began it.
std::vector<WorkerExit> not_started(const std::vector<WorkerSpec>& specs) {
  std::vector<WorkerExit> exits;
  for (const WorkerSpec& spec : specs) {
    WorkerExit exit{.rank = spec.rank,
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
  void coordinate(bool take_over) {
    coordinator_ = std::make_unique<CoordinatorThread>(
        rendezvous_.store,
        rules_of(options_, cluster_),
        planner_of(options_),
        CoordinatorThreadOptions{.silence = cluster_.silence, .take_over = take_over});
  }

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
      const bool about_us = order->kind != Order::Kind::refuse ||
                            (!order->hosts.empty() && order->hosts[0] == member_->id());
      if (!about_us)
        continue;
      if (order->kind == Order::Kind::stop) {
        stopped_round_ = order->round;
        if (record_)
          record_->explain(attempt_of(order->round), order->reason);
      }
      if (order->kind != Order::Kind::start && running_round_ != 0 &&
          (order->kind != Order::Kind::stop || order->round == running_round_)) {
        if (!cluster_.remote && !order->reason.empty())
          log(LogLevel::info, cat("ending this round's ranks: ", order->reason));
        processes_.end_all();
      }
      if (order->kind != Order::Kind::stop && !go_on_in_place(*order))
        pending_.push_back(std::move(*order));
    }
    look_for_silence();
  }

  // Our ranks run, and go on in this round; or end where they have no part in it. False: it begins
  // like others.
  bool go_on_in_place(const Order& order) {
    if (order.kind != Order::Kind::start || !order.in_place || !replacing_.go_on)
      return false;
    const auto at = std::find(order.hosts.begin(), order.hosts.end(), member_->id());
    if (at == order.hosts.end()) {
      telemetry_.reset();
      processes_.end_all();
      return false;
    }
    const int host_index = static_cast<int>(at - order.hosts.begin());
    running_round_ = order.round;
    if (processes_.is_ending())
      return true;
    followed_failures_ = order.exits;
    job_->change_plan(order.plan);
    take_place(order, host_index);
    if (record_)
      record_->end_attempt(order.exits, "");
    begin_record(order, host_index);
    replacing_.go_on(
        {.number = attempt_of(order.round),
         .specs = make_worker_specs(order.plan, options_, job_->facts(), attempt_of(order.round)),
         .pause = order.pause,
         .why = order.reason});
    return true;
  }

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

  // The exit code, when there will be none.
  std::optional<int> wait_for_order() {
    for (;;) {
      take_orders();
      if (!pending_.empty())
        return std::nullopt;
      if (lost_) {
        log(LogLevel::error,
            cat(cluster_.backend == "etcd" ? "etcd is gone: "
                                           : "the host that serves the rendezvous is gone: ",
                why_lost_));
        return 1;
      }
      if (const int signal = processes_.stop_requested();
          signal != 0 && !std::exchange(leaving_, true)) {
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

  std::optional<int> run_round(const Order& order) {
    const auto at = std::find(order.hosts.begin(), order.hosts.end(), member_->id());
    if (at == order.hosts.end()) {
      telemetry_.reset();
      take_orders();
      const bool goes_on = stopped_round_ < order.round && pending_.empty();  // else it is history
      if (goes_on)
        log(LogLevel::info,
            cat("the job has its ", order.hosts.size(), " hosts; this one is a spare"));
      return std::nullopt;
    }
    const int host_index = static_cast<int>(at - order.hosts.begin());
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
    if (running_round_ != 0)
      end.round = running_round_;  // it may have gone on in others
    running_round_ = 0;
    if (record_)
      record_->end_attempt(end.exits, end.error);
    if (lost_)
      return std::nullopt;
    if (telemetry_)
      telemetry_->leave(attempt_of(end.round));
    const bool leaves = end.stopped_by != 0 && cluster_.elastic() && !rendezvous_.server;
    if (end.stopped_by != 0 && rendezvous_.server) {
      leaving_ = true;
      member_->report({.kind = Report::Kind::stop, .stopped_by = end.stopped_by});
      end.stopped_by = 0;
    }
    member_->report(end);
    if (!leaves)
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

  // After a failure, whoever's it was: a host with a GPU that has gone bad takes no more part.
  void look_at_gpus(Report& end) {
    const bool has_failed =
        std::any_of(end.exits.begin(), end.exits.end(), std::mem_fn(&WorkerExit::failed));
    if (!has_failed || lost_ || end.stopped_by != 0)
      return;
    const std::vector<BadGpu> bad = bad_gpus();
    if (bad.empty())
      return;
    end.error = cat(describe(bad), "; set aside");
    end.exit_code = 1;
  }

  std::vector<BadGpu> bad_gpus() const {
    return options_.looks_at_gpus ? gpus_.look(plan_, job_->facts().host_index)
                                  : std::vector<BadGpu>();
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

  void prepare(const Order& order, int host_index) {
    if (!job_) {
      if (options_.run_dir.empty())
        options_.run_dir = "runs/" + order.run_folder;
      job_ = std::make_unique<JobSetup>(options_, std::move(ranks_), host_.num_cores, order.launch);
      if (options_.replaces)
        replacing_ =
            replacing_over(job_->open_store(), job_->facts().work_dir, options_.rejoin_within);
      replacing_.replace = [this](const RankFailures& failures) {
        return ask_to_replace(failures);
      };
      replacing_.on_given_up = [this](const std::string& why) {
        give_up_in_place(why);
      };
    }
    job_->use_plan(order.plan, {});  // lets the last round's leases go
    job_->use_plan(order.plan, lease_host(order.plan, host_index, options_));
    take_place(order, host_index);
  }

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

  void begin_telemetry(const Order& order) {
    const std::string& run_dir = job_->facts().work_dir;
    keep_copies_of_launch(run_dir, order.launch);
    std::vector<RankRange> ranks;
    for (size_t i = 0; i < order.hosts.size(); ++i)
      ranks.push_back(ranks_on_host(order.plan, static_cast<int>(i)));
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

  void announce(const Order& order, int host_index) {
    if (order.plan == announced_)
      return;
    announced_ = order.plan;
    if (host_index == 0) {
      show_plan(order.plan, options_, STDERR_FILENO);
      if (const std::string unknown = unknown_local_ranks(order.plan, options_); !unknown.empty())
        log(LogLevel::warn, unknown);
    } else if (!cluster_.remote && !options_.quiet) {
      const RankRange here = ranks_on_host(order.plan, host_index);
      log(LogLevel::info,
          cat("host ",
              host_index,
              " of ",
              order.hosts.size(),
              ": ",
              here.count == 0 ? "no ranks"
                              : cat("ranks ", here.first, " to ", here.first + here.count - 1),
              " of ",
              order.plan.ranks.size(),
              "; rank 0 is at ",
              order.master_addr));
    }
  }

  std::vector<WorkerExit> run_ranks(const Order& order, int* stopped_by) {
    const auto specs =
        make_worker_specs(order.plan, options_, job_->facts(), attempt_of(order.round));
    if (specs.empty())
      return {};
    running_round_ = order.round;
    take_orders();  // it may have been stopped already
    if (stopped_round_ >= order.round || !pending_.empty() || lost_)
      return not_started(specs);
    GroupRules rules{
        .shutdown_timeout = options_.shutdown_timeout,
        .master_port = specs.front().rank == 0 ? watched_port(options_, job_->facts()) : 0,
        .stopped_for = options_.stopped_timeout};
    bool told = false;  // the first is what the others must know at once
    rules.on_failure = [&](const WorkerExit& exit) {
      if (lost_ || std::exchange(told, true))
        return;
      member_->report({.kind = Report::Kind::failing, .round = order.round, .exits = {exit}});
    };
    if (options_.replaces) {
      rules.on_failure = {};
      rules.replacing = &replacing_;
    }
    const GroupResult result = run_workers(processes_, specs, job_->inherited_fds(), rules);
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
    if (job_) {
      tell_activity(
          job_->facts(), attempt_of(order.round), options_.quiet, job_->facts().host_index == 0);
      if (!cluster_.remote && !stopped)
        report_failure(order.exits, job_->facts(), attempt_of(order.round), options_.max_restarts);
      if (order.exit_code == 0) {
        job_->remove_unused_folders();
      } else {  // the folder gets a failure.json, by one of the hosts that share it
        job_->remove_empty_folders();
      }
    }
    if (!order.reason.empty() && !cluster_.remote)
      log(stopped ? LogLevel::info : LogLevel::error, order.reason);
    member_->report({.kind = Report::Kind::leave});
    if (coordinator_ && coordinator_->wait(kTakeLeave))
      clean_up(*rendezvous_.store);
    return order.exit_code;
  }

  void watch_for_silence() {
    processes_.loop().call_at(Clock::now() + cluster_.silence.step(), [this] {
      look_for_silence();
      watch_for_silence();
    });
  }

  // A coordinator that can give no more orders, not even the last one, leaves this host to itself.
  void look_for_silence() {
    if (const std::string why = member_->lost(); !why.empty())
      be_lost(why);
    if (coordinator_ && coordinator_->broken())
      be_lost("its coordinator cannot reach the store");
  }

  LaunchOptions options_;
  const ClusterOptions cluster_;
  const RankSampler sampler_;
  const Host host_;
  const GpuWatch gpus_;
  HostRendezvous
      rendezvous_;  // before signals are ours: until there are ranks, they simply end this process
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
  std::vector<WorkerExit> followed_failures_;  // for which the round has begun in place
  bool lost_ = false;
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
