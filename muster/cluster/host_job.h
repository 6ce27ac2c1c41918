// One host's part in a job of several hosts: its place in the round that runs, its leases, what it
// shows of the round, and the record and telemetry that it keeps. The host's agent makes it when
// the host takes part for the first time, and tells it of the rounds. It knows nothing of orders
// that are still to come, nor of processes.
#pragma once

#include <memory>
#include <string>

#include "muster/base/no_copy.h"
#include "muster/cluster/cluster_options.h"
#include "muster/cluster/host_telemetry.h"
#include "muster/cluster/messages.h"
#include "muster/cluster/plan_file.h"
#include "muster/device/inventory.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/launch.h"
#include "muster/launch/rank_exit.h"
#include "muster/launch/rank_rendezvous.h"
#include "muster/launch/rank_spec.h"
#include "muster/launch/run_recorder.h"
#include "muster/placement/plan.h"
#include "muster/store/store.h"

namespace muster {

// Who takes part, and by what the hosts' telemetry goes.
struct HostInJob {
  std::string id{};  // of the agent
  Host host{};
  SharedStore store{};  // of the agents
  RankSampler sampler{};
};

class HostJob : NoCopy {
 public:
  // Makes the run's folder. `first`: the order by which the host takes part. Throws: as JobSetup.
  HostJob(const LaunchOptions& options,
          const ClusterOptions& cluster,
          HostInJob host,
          RankRendezvous ranks,
          const Order& first);

  ~HostJob();

  // A round of new processes begins. Throws: Error where this host cannot start its ranks.
  void begin_round(const Order& order);
  // The processes go on in another round. Throws: Error, as it writes the plan.
  void change_round(const Order& order);

  // The ranks of this host in a round, as they are to be started.
  RankSpecs rank_specs(const Order& order) const;
  const JobSetup& setup() const { return *setup_; }
  const Plan& plan() const { return plan_; }

  // Why the round was ended on this host, where none of its own ranks is the cause.
  void explain(const Order& stop);
  // All ranks of this host have ended.
  void end_attempt(const RankExits& exits, const std::string& fault);
  // Leaves what the ranks have written for the first host. Blocking: for the store's answers.
  void leave_telemetry(int round);

  // This host has no part in the round that begins.
  void become_spare();
  // This host takes no more part, and another keeps the record.
  void leave();
  // The job is over: collects, writes and shows what there is to show of it.
  void finish(const Order& order, bool stopped);

 private:
  void take_place(const Order& order);
  void begin_telemetry(const Order& order);
  void begin_record(const Order& order);
  void announce(const Order& order);
  void announce_to_others(const Order& order) const;
  void report_end(const Order& order, bool stopped) const;

  LaunchOptions options_;
  const ClusterOptions& cluster_;
  const HostInJob host_;
  std::unique_ptr<JobSetup> setup_;
  const std::shared_ptr<PlanFile> plan_file_;
  std::unique_ptr<JobRegistration> registration_;
  std::unique_ptr<HostTelemetry> telemetry_;
  std::unique_ptr<RunRecorder> record_;  // where this is the first of the job's hosts
  Plan plan_;                            // this host's part
  std::string announced_;                // the digest of the plan that was
};

}  // namespace muster
