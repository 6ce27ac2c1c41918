// The agent of one host as a class. Private to its sources: host_agent.cc takes orders and carries
// them out in turn, host_agent_round.cc runs the ranks of a round. What the host has of the job's
// round is a HostJob's.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "muster/cluster/cluster_options.h"
#include "muster/cluster/coordinator_thread.h"
#include "muster/cluster/host_job.h"
#include "muster/cluster/host_rendezvous.h"
#include "muster/cluster/host_telemetry.h"
#include "muster/cluster/member.h"
#include "muster/cluster/messages.h"
#include "muster/launch/gpu_watch.h"
#include "muster/launch/launch.h"
#include "muster/launch/rank_exit.h"
#include "muster/launch/rank_rendezvous.h"
#include "muster/launch/replacement.h"
#include "muster/supervise/process_set.h"

namespace muster {

class HostAgent {
 public:
  HostAgent(const LaunchOptions& options, const ClusterOptions& cluster, RankSampler sampler);

  // Blocking: until the job is over, or this host's part in it. Returns the exit code.
  int run();

 private:
  // Orders (host_agent.cc).
  void coordinate(bool take_over);
  HostFacts facts() const;
  void take_orders();
  bool is_for_us(const Order& order) const;
  void take(Order order);
  void take_signal(const Order& order);
  void pass_on(int signal);
  bool ends_our_ranks(const Order& order) const;
  std::optional<int> wait_for_order();
  void tell_of_loss() const;
  std::optional<int> leave(int signal);
  void hand_over();
  int finish(const Order& order);
  void watch_for_silence();
  void look_for_silence();
  void be_lost(const std::string& why);

  // A round (host_agent_round.cc).
  std::optional<int> run_round(const Order& order);
  void be_spare(const Order& order);
  Report run_to_the_end(const Order& order);
  void set_up(const Order& order);
  RankExits run_ranks(const Order& order, int* stopped_by);
  bool is_awaited() const;
  std::optional<int> tell_end(Report end);
  void look_at_gpus(Report& end);
  BadGpus bad_gpus() const;
  bool go_on_in_place(const Order& order);
  bool ask_to_replace(const RankFailures& failures);
  void give_up_in_place(const std::string& why);

  const LaunchOptions options_;
  const ClusterOptions cluster_;
  const RankSampler sampler_;
  const Host host_;
  const GpuWatch gpus_;
  HostRendezvous rendezvous_;
  // Signals are ours once this host has joined. Until then they end this process, but for requests
  // (KeptRequests).
  std::optional<ProcessSet> processes_;
  RankRendezvous ranks_;  // moved into job_
  std::unique_ptr<CoordinatorThread> coordinator_;
  std::unique_ptr<Member> member_;
  std::unique_ptr<HostJob> job_;  // once this host has taken part
  Replacing replacing_;
  std::deque<Order> pending_;
  Orders early_signals_;  // of rounds that have not begun here, and of some that have
  int stopped_round_ = 0;
  int running_round_ = 0;
  RankExits followed_failures_;  // for which the round has begun in place
  bool lost_ = false;
  std::string own_error_;  // of the last round's end here
  std::string why_lost_;
  bool leaving_ = false;
};

}  // namespace muster
