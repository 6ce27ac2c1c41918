// A round replaces what the round before it had of the job: place, registration, telemetry. The
// leases of the last round are let go before those of the next are taken. The first host of a round
// keeps the record for all; a host that was first hands it over.
#include "muster/cluster/host_job.h"

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "muster/base/folders.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/cluster/stored_plan.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/job_activity.h"
#include "muster/launch/job_plan.h"
#include "muster/launch/job_report.h"
#include "muster/launch/job_start.h"
#include "muster/placement/plan_part.h"
#include "muster/trace/activity.h"
#include "muster/trace/read_activity.h"

namespace muster {
namespace {

std::string in_words(const RankRange& ranks) {
  if (ranks.count == 0)
    return "no ranks";
  if (ranks.count == 1)
    return cat("rank ", ranks.first);
  return cat("ranks ", ranks.first, " to ", ranks.first + ranks.count - 1);
}

RoundHosts hosts_of(const WholeRound& whole) {
  const auto ranks_of = [&](int host) {
    return ranks_on_host(whole.plan, host);
  };
  return {.ids = whole.hosts, .ranks = mapped(int_indices_of(whole.hosts), ranks_of)};
}

// The first host has the whole plan. Another reads it where somebody asks there about all of the
// job, who then finds plan.json there, too: in a folder that the first host does not write to.
std::function<RoundHosts()> asking_for_all(const Order& order,
                                           const SharedStore& store,
                                           const std::string& work_dir,
                                           const std::shared_ptr<PlanFile>& plan_file) {
  if (order.whole)
    return [whole = order.whole] {
      return hosts_of(*whole);
    };
  const auto rank_0 = activity_path(work_dir, attempt_of(order.round), 0);
  return [order, store, rank_0, plan_file] {
    const WholeRound whole = read_whole(*store, order);
    if (!path_exists(rank_0))
      plan_file->write_later(order.round, whole.plan);
    return hosts_of(whole);
  };
}

LaunchOptions with_folder(LaunchOptions options, const std::string& run_folder) {
  if (options.run_dir.empty())
    options.run_dir = "runs/" + run_folder;
  return options;
}

}  // namespace

HostJob::HostJob(const LaunchOptions& options,
                 const ClusterOptions& cluster,
                 HostInJob host,
                 RankRendezvous ranks,
                 const Order& first)
    : options_(with_folder(options, first.run_folder)),
      cluster_(cluster),
      host_(std::move(host)),
      setup_(std::make_unique<JobSetup>(
          options_, std::move(ranks), host_.host.num_cores, first.launch)),
      plan_file_(std::make_shared<PlanFile>(setup_->facts().run_dir, options_.plan)) {}

// Threads of the telemetry may outlive it, and know the file.
HostJob::~HostJob() {
  plan_file_->end();
  setup_->remove_part();
}

void HostJob::begin_round(const Order& order) {
  setup_->use_plan(order.plan, {});  // lets the last round's leases go
  setup_->use_plan(order.plan, lease_host(order.plan, *order.host_index, options_));
  take_place(order);
  announce(order);
  begin_record(order);
}

void HostJob::change_round(const Order& order) {
  setup_->change_plan(order.plan);
  take_place(order);
  end_attempt(order.exits, "");
  begin_record(order);
}

// Takes over all that another round may change for this host, in place or not.
void HostJob::take_place(const Order& order) {
  plan_ = order.plan;
  plan_file_->begin_round(order.round, order.whole ? &order.whole->plan : nullptr);
  setup_->use_place(*order.host_index, order.master_addr, order.master_port, order.store);
  setup_->count_restarts(order.restart_count);
  setup_->use_launch(order.launch);
  registration_.reset();
  registration_ =
      std::make_unique<JobRegistration>(job_note(options_, order.plan, setup_->facts()));
  begin_telemetry(order);
}

// Telemetry belongs to a round: its hosts and their ranks.
void HostJob::begin_telemetry(const Order& order) {
  const std::string& run_dir = setup_->facts().work_dir;
  keep_copies_of_launch(run_dir, order.launch);
  telemetry_.reset();  // it removes what the next one makes
  telemetry_ = std::make_unique<HostTelemetry>(
      host_.store,
      HostTelemetryOptions{.host = host_.id,
                           .host_index = *order.host_index,
                           .num_hosts = order.num_hosts,
                           .ranks = rank_numbers_on_host(order.plan, *order.host_index),
                           .all = asking_for_all(order, host_.store, run_dir, plan_file_),
                           .run_dir = run_dir,
                           .launch = order.launch,
                           .sampler = host_.sampler});
}

void HostJob::begin_record(const Order& order) {
  if (order.host_index != 0) {
    if (record_)
      record_->hand_over();
    record_.reset();
    return;
  }
  if (!record_)
    record_ = std::make_unique<RunRecorder>(options_, setup_->facts(), host_.host.name, nullptr);
  record_->begin_attempt(attempt_of(order.round), order.in_place);
}

// A plan is announced once, however often it is started. The first host shows all of it.
void HostJob::announce(const Order& order) {
  if (order.stored.digest == announced_)
    return;
  announced_ = order.stored.digest;
  if (!order.whole)
    return announce_to_others(order);
  show_plan(order.whole->plan, options_, STDERR_FILENO);
  const auto unknown = unknown_local_ranks(order.whole->plan, options_);
  if (!unknown.empty())
    log_warning(unknown);
}

void HostJob::announce_to_others(const Order& order) const {
  if (cluster_.remote || options_.quiet)
    return;
  log_info("host ",
           *order.host_index,
           " of ",
           order.num_hosts,
           ": ",
           in_words(rank_numbers_on_host(order.plan, *order.host_index)),
           " of ",
           world_size(order.plan),
           "; rank 0 is at ",
           order.master_addr);
}

RankSpecs HostJob::rank_specs(const Order& order) const {
  return make_rank_specs(order.plan, options_, setup_->facts(), attempt_of(order.round));
}

void HostJob::explain(const Order& stop) {
  if (record_)
    record_->explain(attempt_of(stop.round), stop.reason);
}

void HostJob::end_attempt(const RankExits& exits, const std::string& fault) {
  if (record_)
    record_->end_attempt(exits, fault);
}

void HostJob::leave_telemetry(int round) {
  if (telemetry_)
    telemetry_->leave(attempt_of(round));
}

void HostJob::become_spare() {
  telemetry_.reset();
  plan_file_->leave();
}

void HostJob::leave() {
  plan_file_->leave();
  if (telemetry_)
    telemetry_->finish();
  if (record_)
    record_->hand_over();
}

void HostJob::finish(const Order& order, bool stopped) {
  plan_file_->end();
  if (telemetry_) {
    telemetry_->collect(attempt_of(order.round));
    telemetry_->finish();
  }
  if (record_) {
    if (!order.exits.empty())
      record_->end_attempt(order.exits, "");
    record_->finish(order.exit_code, outcome_of(order.exit_code, order.exits));
  }
  report_end(order, stopped);
}

// An agent of ssh says nothing: its launcher does.
void HostJob::report_end(const Order& order, bool stopped) const {
  const JobFacts& facts = setup_->facts();
  const int attempt = attempt_of(order.round);
  tell_activity(facts, attempt, options_.quiet, facts.host_index == 0);
  if (!cluster_.remote && !stopped)
    report_failure(order.exits, facts, attempt, options_.max_restarts);
  if (order.exit_code == 0) {
    setup_->remove_unused_folders();
  } else {  // the folder gets a failure.json, by one of the hosts that share it
    setup_->remove_empty_folders();
  }
}

}  // namespace muster
