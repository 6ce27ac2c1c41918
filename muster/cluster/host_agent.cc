// One process for each host. It waits for the coordinator's orders and carries them out in turn: a
// start order runs the ranks of this host to their end (host_agent_round.cc), and while they run,
// the event loop of the process set takes further orders, so that ranks can be stopped or go on in
// another round. The host that serves the store coordinates too, in a thread of its own.
#include "muster/cluster/host_agent.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/fnv.h"
#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/shell.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/version.h"
#include "muster/cluster/coordinator_options.h"
#include "muster/cluster/host_agent_state.h"
#include "muster/launch/check_launch.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/job_plan.h"
#include "muster/launch/job_setup.h"
#include "muster/supervise/child.h"
#include "muster/supervise/kept_requests.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kTakeLeave{5};
constexpr auto kCommandKey = "command";

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

// The program, or the script that it runs, without its folder, which may differ between the hosts
// of a job; and a digest of the arguments, which are nobody else's business.
struct Command {
  std::string program{};
  std::string arguments{};
};

Command command_of(const LaunchOptions& options) {
  const Strings& words = options.argv;
  const size_t at = words.size() > 1 && words[1].ends_with(".py") ? 1 : 0;
  uint64_t digest = kFnvStart;
  for (const auto& word : std::span(words).subspan(at + 1))
    digest = fnv1a(word + '\n', digest);
  return {file_name(words.at(at)), cat(digest)};
}

// How this host's command differs from the first one's of the job.
std::string difference(const Command& ours, const std::string& first) {
  const size_t blank = first.find(' ');  // behind the digest
  const auto program = first.substr(blank + 1);
  const auto arguments = first.substr(0, blank);
  if (ours.program != program)
    return cat(" with '",
               shown_text(ours.program),
               "', and its first host with '",
               shown_text(program),
               "'");
  return ours.arguments == arguments ? "" : " with other arguments than its first host";
}

// Two jobs of one address become one where neither has a name, nor its hosts numbers. Whoever
// comes with another command than the first is told, and whoever is not the first of its machine.
void tell_of_merged_jobs(const LaunchOptions& options,
                         const ClusterOptions& cluster,
                         const HostRendezvous& rendezvous) {
  const bool is_named = cluster.remote || cluster.node_rank || !cluster.rendezvous_file.empty() ||
                        cluster.job != "none";
  if (is_named)
    return;
  const Command ours = command_of(options);
  const auto first =
      rendezvous.store->compare_set(kCommandKey, "", cat(ours.arguments, " ", ours.program));
  const auto how = difference(ours, first);
  const auto served = framed(" (which ", rendezvous.holder, " of this machine serves already)");
  if (how.empty() && served.empty())
    return;
  // Arguments may well be a host's own, such as its folder.
  log(first.ends_with(" " + ours.program) ? LogLevel::info : LogLevel::warn,
      "this host joins the job at ",
      cluster.endpoint,
      served,
      how,
      "; if these are two jobs, give each a --rdzv-id or a --rdzv-endpoint of its own");
}

}  // namespace

HostAgent::HostAgent(const LaunchOptions& options,
                     const ClusterOptions& cluster,
                     RankSampler sampler)
    : options_(options),
      cluster_(cluster),
      sampler_(std::move(sampler)),
      host_(this_host(options_, cluster)),
      gpus_(host_),
      rendezvous_(open_host_rendezvous(cluster)),
      ranks_(RankRendezvousOptions{.address = rendezvous_.address,
                                   .secret = ranks_secret(rendezvous_),
                                   .no_auth = rendezvous_.secret.empty()}) {
  tell_of_merged_jobs(options_, cluster_, rendezvous_);
  if (rendezvous_.server)
    coordinate(false);
  member_ = std::make_unique<Member>(
      rendezvous_.store,
      facts(),
      MemberOptions{.silence = cluster_.silence, .elects = cluster_.backend == "etcd"});
  processes_.emplace(ProcessSetOptions{.stop_signals = options.stop_signals,
                                       .goes_on_because = kGoesOnBecause,
                                       .on_pass = [this](int signal) { pass_on(signal); }});
  processes_->loop().watch_readable(member_->fd(), [this] { take_orders(); });
  watch_for_silence();
}

int HostAgent::run() {
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
        log_error(order.reason);
        return order.exit_code;
      case Order::Kind::stop:  // of a round that has ended here already
      case Order::Kind::signal:
        break;
    }
  }
}

// This host decides for all from now on.
void HostAgent::coordinate(bool take_over) {
  coordinator_ = std::make_unique<CoordinatorThread>(
      rendezvous_.store,
      rules_of(options_, cluster_),
      planner_of(options_),
      CoordinatorThreadOptions{.silence = cluster_.silence, .take_over = take_over});
}

// All that the coordinator and the planner need to know of this host.
HostFacts HostAgent::facts() const {
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
void HostAgent::take_orders() {
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
bool HostAgent::is_for_us(const Order& order) const {
  if (order.kind != Order::Kind::refuse)
    return true;
  return !order.hosts.empty() && order.hosts[0] == member_->id();
}

// Acts at once on what concerns the ranks that run; run() does the rest in its turn.
void HostAgent::take(Order order) {
  if (order.kind == Order::Kind::signal)
    return take_signal(order);
  if (order.kind == Order::Kind::stop) {
    stopped_round_ = order.round;
    if (job_ && !order.reason.empty())
      job_->explain(order);
  }
  if (ends_our_ranks(order)) {
    if (!cluster_.remote && !order.reason.empty())
      log_info("ending this round's ranks: ", order.reason);
    if (order.is_asked)
      processes_->ask_all_to_stop();
    else
      processes_->end_all();
  }
  if (order.kind != Order::Kind::stop && !go_on_in_place(order))
    pending_.push_back(std::move(order));
}

// The round may not have begun here.
void HostAgent::take_signal(const Order& order) {
  if (order.round == running_round_)
    processes_->tell_all(order.signal);
  else
    early_signals_.push_back(order);
}

// Whoever tells one host, as a scheduler does, means the job.
void HostAgent::pass_on(int signal) {
  if (lost_)
    processes_->tell_all(signal);
  else
    member_->report({.kind = Report::Kind::signal, .signal = signal});
}

// A start order ends no ranks: it comes when they have ended, or go on in place.
bool HostAgent::ends_our_ranks(const Order& order) const {
  if (running_round_ == 0 || order.kind == Order::Kind::start)
    return false;
  return order.kind != Order::Kind::stop || order.round == running_round_;
}

// Returns the exit code if no order will come, or nothing once there is one.
std::optional<int> HostAgent::wait_for_order() {
  for (;;) {
    take_orders();
    if (!pending_.empty())
      return std::nullopt;
    if (lost_) {
      tell_of_loss();
      return 1;
    }
    const int signal = processes_->stop_requested();
    if (signal != 0 && !std::exchange(leaving_, true)) {
      if (const auto code = leave(signal))
        return code;
    }
    processes_->loop().run_once(std::nullopt);
  }
}

// The others may be through, and gone, before they have said that this host is set aside.
void HostAgent::tell_of_loss() const {
  if (!own_error_.empty())
    log_error(own_error_);
  const bool was_etcd = cluster_.backend == "etcd";
  log_error(was_etcd ? "etcd" : "the host that serves the rendezvous", " is gone: ", why_lost_);
}

// A signal came while no ranks ran here. The host that serves ends the job for all; any host does
// that where none can be spared.
std::optional<int> HostAgent::leave(int signal) {
  if (rendezvous_.server || !cluster_.elastic()) {
    member_->report({.kind = Report::Kind::stop, .stopped_by = signal});
    return std::nullopt;  // the order to finish follows
  }
  if (job_)
    job_->leave();
  member_->report({.kind = Report::Kind::leave, .stopped_by = signal});
  hand_over();
  log_info("stopped by ", signal_name(signal), "; this host has left the job");
  return 128 + signal;
}

// Another host coordinates from now on.
void HostAgent::hand_over() {
  if (!coordinator_)
    return;
  coordinator_.reset();
  member_->resign();
}

// The job is over. The host that coordinates waits until the others have taken leave.
int HostAgent::finish(const Order& order) {
  const bool stopped = order.exit_code == kStoppedExitCode && have_stopped(order.exits);
  if (job_)
    job_->finish(order, stopped);
  job_.reset();  // others may wait for its folder
  if (!order.reason.empty() && !cluster_.remote)
    log(stopped ? LogLevel::info : LogLevel::error, order.reason);
  member_->report({.kind = Report::Kind::leave});
  if (coordinator_ && coordinator_->wait(kTakeLeave))
    clean_up(*rendezvous_.store);
  return order.exit_code;
}

// The silence of the store is noticed only if somebody asks again and again.
void HostAgent::watch_for_silence() {
  processes_->loop().call_at(Clock::now() + cluster_.silence.step(), [this] {
    look_for_silence();
    watch_for_silence();
  });
}

// A coordinator that can give no more orders, not even the last one, leaves this host to itself.
void HostAgent::look_for_silence() {
  const std::string why = member_->lost();
  if (!why.empty())
    be_lost(why);
  if (coordinator_ && coordinator_->broken())
    be_lost("its coordinator cannot reach the store");
}

// Nobody will give orders any more. The ranks have the time that Silence promises to the others.
void HostAgent::be_lost(const std::string& why) {
  if (lost_)
    return;
  lost_ = true;
  why_lost_ = why;
  if (running_round_ == 0)
    return;
  log_error("this host has lost the others; ending its ranks");
  processes_->end_all();
  processes_->loop().call_at(Clock::now() + cluster_.silence.grace(),
                             [this] { processes_->end_all_now(); });
}

int run_host_agent(const LaunchOptions& options,
                   const ClusterOptions& cluster,
                   RankSampler sampler) {
  const KeptRequests kept;
  check_launch(options);
  program_paths(options);
  check_folders(options);
  return HostAgent(options, cluster, std::move(sampler)).run();
}

}  // namespace muster
