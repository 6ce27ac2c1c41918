// The way of a round: on_report and on_tick change the state and collect orders in orders_, which
// both return at their end. Why a round is being stopped is kept in trouble_ until all its ranks
// have ended; round_over then decides by it what follows.
#include "muster/cluster/coordinator.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <ranges>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/device/numbers.h"
#include "muster/launch/cause.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/launch.h"
#include "muster/launch/restart.h"
#include "muster/supervise/child.h"
#include "muster/supervise/command_output.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kWordEvery{30};  // while hosts are awaited
constexpr milliseconds kToldTogether{5'000};    // what a scheduler tells every host

}  // namespace

// The job begins with the gathering of its hosts.
Coordinator::Coordinator(CoordinatorRules rules, Planner planner, Say say, TimePoint now)
    : rules_(std::move(rules)),
      planner_(std::move(planner)),
      say_(std::move(say)),
      now_(now),
      began_(now),
      gathering_since_(now),
      next_word_(now + kWordEvery),
      not_before_(now) {}

// After the end of the job hosts only take leave; others that come are refused.
Orders Coordinator::on_report(Report report, TimePoint now) {
  now_ = now;
  if (is_told_again(report))
    return on_tick(now);
  if (phase_ == Phase::finished) {
    if (is_one_of(report.kind, Report::Kind::leave, Report::Kind::lost))
      members_.erase(report.from);
    if (report.kind == Report::Kind::join)
      refuse(report.from, "the job has ended");
    return std::exchange(orders_, {});
  }
  switch (report.kind) {
    case Report::Kind::join:
      on_join(std::move(report));
      break;
    case Report::Kind::failing:
      on_failing(report);
      break;
    case Report::Kind::ended:
      on_ended(report);
      break;
    case Report::Kind::leave:
      if (report.stopped_by != 0 && !rules_.elastic()) {
        on_stop(report);
      }
      on_gone(report.from, false);
      break;
    case Report::Kind::lost:
      on_gone(report.from, true);
      break;
    case Report::Kind::stop:
      on_stop(report);
      break;
    case Report::Kind::signal:
      pass_on(report);
      break;
  }
  return on_tick(now);
}

// A host whose store did not answer reports again, and both reports may have arrived. What one that
// takes no part tells again changes nothing.
bool Coordinator::is_told_again(const Report& report) {
  Member* const member = value_at(members_, report.from);
  if (report.number == 0 || member == nullptr)
    return false;
  int& last = member->last_report;
  if (report.number <= last)
    return true;
  last = report.number;
  return false;
}

Orders Coordinator::on_tick(TimePoint now) {
  now_ = now;
  if (time_limit_is_over(now))
    end_by_time_limit();
  if (phase_ == Phase::stopping && stop_deadline_ && now >= *stop_deadline_)
    give_up_unended_hosts();
  const bool has_round = is_one_of(phase_, Phase::running, Phase::stopping);
  if (has_round && all_ended())
    round_over();
  let_newcomers_into_free_places();
  if (phase_ == Phase::gathering)
    try_to_start();
  return std::exchange(orders_, {});
}

// The limit counts from the job's start, or has its own end.
bool Coordinator::time_limit_is_over(TimePoint now) const {
  const bool is_ending = is_one_of(phase_, Phase::stopping, Phase::finished);
  if (is_ending || !rules_.time_limit)
    return false;
  return now >= rules_.ends_at.value_or(began_ + *rules_.time_limit);
}

// Ranks that run are stopped first; finish() follows when they have ended.
void Coordinator::end_by_time_limit() {
  trouble_.error = cat(
      "stopped: the time limit of ", format_duration(*rules_.time_limit), " (--timeout) is over");
  trouble_.error_code = kTimeLimitExitCode;
  if (phase_ == Phase::running) {
    stop_round("the time limit is over", true);
  } else {
    finish(kTimeLimitExitCode, trouble_.error);
  }
}

// A host whose ranks do not end in time is treated as one that is gone.
void Coordinator::give_up_unended_hosts() {
  for (const auto& id : live_hosts()) {
    const Member& member = members_.at(id);
    if (member.in_round && !member.ended)
      on_gone(id, true);
  }
}

// A report of an earlier round may come late; it is history then.
bool Coordinator::is_of_round(const Report& report) const {
  const Member* const member = value_at(members_, report.from);
  return member != nullptr && member->in_round && report.round == round_;
}

// Whether the job could go on without any one of its hosts.
bool Coordinator::can_spare_a_host() const {
  return rules_.elastic() && std::ssize(members_) > rules_.min_hosts;
}

// A rank has failed, and its host's other ranks still run: those of all hosts end now, unless the
// failure can be made good in place.
void Coordinator::on_failing(const Report& report) {
  if (!is_of_round(report))
    return;
  if (phase_ == Phase::running && report.error.empty() && replace_in_place(report))
    return;
  for (const RankExit& exit : report.exits)
    trouble_.add_failure(exit);
  if (phase_ != Phase::running)
    return end_spared();
  if (!report.error.empty())
    return stop_round(cat("not replaced in place: ", report.error));
  if (!report.exits.empty()) {
    const RankExit& first = report.exits.front();
    const std::string what = some_have_stopped({first}) ? " has stopped, as it was asked to"
                                                        : cat(" failed: ", first.cause);
    stop_round(cat("rank ", first.rank, " on host ", first.host, what));
  }
}

// All ranks of a host have ended, or could not be started. Without a bad reason the round goes on
// until the ranks of all hosts have ended.
void Coordinator::on_ended(const Report& report) {
  if (!is_of_round(report) || leave_in_place(report))
    return;
  Member& member = members_.at(report.from);
  member.ended = true;
  some_have_ended_ |= member.has_ranks;
  for (const RankExit& exit : report.exits)
    note_end(exit);
  if (!report.error.empty())
    note_error(report);
  if (report.stopped_by != 0)
    note_stop(report);
  const bool ended_well =
      report.error.empty() && report.stopped_by == 0 && trouble_.failures.empty();
  if (!ended_well && phase_ == Phase::running)
    stop_round(why_ended(report));
  else if (phase_ == Phase::stopping)
    end_spared();
}

// A rank that is told of twice has the place of the first time.
void Coordinator::Trouble::add_failure(const RankExit& exit) {
  place_of_rank.emplace(exit.rank, failures.size());
  failures.push_back(exit);
}

// The report of a rank's end has the whole story of a failure that was told in a hurry.
void Coordinator::note_end(const RankExit& exit) {
  exits_.push_back(exit);
  const bool ended_by_itself = exit.sent_signal == 0;
  const size_t* const told = value_at(trouble_.place_of_rank, exit.rank);
  if (told == nullptr) {
    if (exit.failed() && ended_by_itself)
      trouble_.add_failure(exit);
  } else if (ended_by_itself) {  // not the end of the one that was started in its place
    trouble_.failures[*told] = exit;
  }
}

// A host could not start its ranks. The job does without it, or fails of that.
void Coordinator::note_error(const Report& report) {
  if (can_spare_a_host()) {
    do_without(report.from, report.error);
    let_leave(report.from);
    return;
  }
  trouble_.error = cat("host ", name_of(report.from), ": ", report.error);
  trouble_.error_code = report.exit_code;
}

// A host was stopped by a signal. It leaves an elastic job, and ends any other.
void Coordinator::note_stop(const Report& report) {
  if (rules_.elastic()) {
    let_leave(report.from);
  } else {
    trouble_.stopped_by = report.stopped_by;
  }
}

// The host's ranks have ended, but it takes part until the round is over.
void Coordinator::let_leave(const std::string& id) {
  members_.at(id).leaves = true;
  trouble_.hosts_changed = true;
}

// Why the other hosts' ranks end, for people.
std::string Coordinator::why_ended(const Report& report) const {
  if (!report.error.empty())
    return cat("host ", name_of(report.from), ": ", report.error);
  if (report.stopped_by != 0)
    return cat("host ", name_of(report.from), " leaves");
  return cat("rank ", trouble_.failures[0].rank, " failed");
}

// The member's place is free, so a newcomer that waits for it may join.
void Coordinator::on_gone(const std::string& id, bool lost) {
  forget_newcomer(id);
  if (!members_.contains(id))
    return;
  go_on_without(id, lost);
  let_newcomers_in(id);
}

// A host that takes no part in the round, or whose ranks have ended, is no loss.
void Coordinator::go_on_without(const std::string& id, bool lost) {
  const auto found = members_.find(id);
  const std::string name = name_of(id);
  const bool mattered = found->second.in_round && !found->second.ended;
  hosts_in_round_ -= found->second.in_round ? 1 : 0;
  members_.erase(found);
  if (lost)  // in case it lives
    refuse(id, "it was given up: no sign of life, or ranks that did not end in time");
  if (phase_ == Phase::gathering)
    say_(cat("host ", name, lost ? " is gone" : " has left"));
  const auto loss = cat("host ", name, lost ? " is gone" : " leaves");
  if (!mattered || regroup_in_place(loss))
    return;
  trouble_.hosts_changed = true;
  if (lost)
    trouble_.lost.push_back(name);
  if (phase_ == Phase::running)
    stop_round(loss);
}

// Somebody ends the whole job: by a signal, or because of an error that no host can report.
void Coordinator::on_stop(const Report& report) {
  trouble_.stopped_by = report.stopped_by;
  if (!report.error.empty()) {
    trouble_.error = report.error;
    trouble_.error_code = report.exit_code;
  }
  const auto reason = text_or(report.error, cat("stopped by ", signal_name(report.stopped_by)));
  if (phase_ == Phase::running) {
    stop_round(reason, true);
  } else if (phase_ == Phase::gathering) {
    finish(report.error.empty() ? 128 + report.stopped_by : report.exit_code, reason);
  }
}

// Requests to ranks wait for ranks that run. Other signals end ranks, or let them go on: where none
// run, there is nobody to hear of them.
void Coordinator::pass_on(const Report& report) {
  if (is_told_by_another(report))
    return;
  const bool is_request = is_one_of(report.signal, SIGUSR1, SIGUSR2);
  if (is_request && phase_ != Phase::running) {
    kept_signals_.insert(report.signal);
    say_(
        cat(signal_name(report.signal), " came while no round runs; its ranks get it in the next"));
  } else if (is_one_of(phase_, Phase::running, Phase::stopping)) {
    orders_.push_back({.kind = Order::Kind::signal, .round = round_, .signal = report.signal});
  }
}

// A scheduler tells every host, and each host tells it here. A host that tells it again means it.
bool Coordinator::is_told_by_another(const Report& report) {
  ToldSignal& told = told_signals_[report.signal];
  const bool is_recent = !told.by.empty() && now_ - told.at < kToldTogether;
  if (is_recent && !told.by.contains(report.from)) {
    if (told.by.size() == 1)
      say_(cat(signal_name(report.signal),
               " to host ",
               name_of(report.from),
               " counts as the one to host ",
               name_of(*told.by.begin()),
               ": a scheduler tells every host, and they came within ",
               format_duration(kToldTogether)));
    told.by.insert(report.from);
    return true;
  }
  told = {.at = now_, .by = {report.from}};
  return false;
}

// Tells one host that it takes no part, and why. Its agent ends with that.
void Coordinator::refuse(const std::string& id, const std::string& reason) {
  orders_.push_back({.kind = Order::Kind::refuse, .hosts = {id}, .reason = reason, .exit_code = 1});
}

// The ranks of all hosts are to end; their reports of it are awaited until the deadline.
// `is_asked`: none has failed or is lost, so that they may agree on the step after which they stop.
void Coordinator::stop_round(const std::string& reason, bool is_asked) {
  phase_ = Phase::stopping;
  spares_ = is_asked && rules_.replaces;
  stop_deadline_ = now_ + rules_.stop_timeout;
  orders_.push_back(
      {.kind = Order::Kind::stop, .round = round_, .is_asked = is_asked, .reason = reason});
}

// Ranks that were to come together before they stop can no longer do so, or have done so.
void Coordinator::end_spared() {
  if (std::exchange(spares_, false))
    orders_.push_back({.kind = Order::Kind::stop, .round = round_});
}

// Hosts that take no part in the round have no ranks to be waited for. Within a round ranks only
// end, so the search goes on where the last one found ranks that ran.
bool Coordinator::all_ended() {
  const auto running =
      std::find_if(members_.lower_bound(first_running_), members_.end(), [](const auto& entry) {
        return entry.second.in_round && !entry.second.ended;
      });
  if (running == members_.end())
    return true;
  first_running_ = running->first;
  return false;
}

// All ranks of the round have ended. The first of these reasons decides what follows.
void Coordinator::round_over() {
  stop_deadline_.reset();
  const bool was_stopped = phase_ == Phase::stopping;
  std::erase_if(members_, [](const auto& entry) { return entry.second.leaves; });
  if (!was_stopped)
    return finish(0, "");
  const bool job_ends = !trouble_.hosts_changed || trouble_.stopped_by != 0 || members_.empty();
  if (have_stopped(exits_) && job_ends)
    return finish(kStoppedExitCode, "all ranks have stopped, as they were asked to");
  put_cause_first(trouble_.failures);
  put_replaced_first(trouble_.failures, trouble_.replaced);
  if (!trouble_.error.empty())
    return finish(trouble_.error_code, trouble_.error);
  if (trouble_.stopped_by != 0)
    return finish(128 + trouble_.stopped_by, cat("stopped by ", signal_name(trouble_.stopped_by)));
  if (!trouble_.lost.empty())
    return restart_after_loss();
  if (trouble_.failures.empty() || trouble_.hosts_changed)
    return regather();
  const RankExit* const first = first_failure(trouble_.failures);
  restart_after_failure(first != nullptr ? *first : trouble_.failures[0]);
}

// The loss of hosts costs an elastic job no restart.
void Coordinator::restart_after_loss() {
  const bool is_one = trouble_.lost.size() == 1;
  const auto lost = cat(
      is_one ? "host " : "hosts ", join(trouble_.lost, ", "), is_one ? " is gone" : " are gone");
  if (rules_.elastic()) {
    const bool enough = std::ssize(members_) >= rules_.min_hosts;
    say_(cat(lost, enough ? "; going on without it" : "; waiting for another"));
    return regather();
  }
  if (restarts_ >= rules_.max_restarts)
    return finish(1, lost);
  ++restarts_;
  say_(cat(lost, "; waiting for another (restart ", restarts_, " of ", rules_.max_restarts, ")"));
  regather();
}

// Costs a restart. A host that has failed too often takes no more part.
void Coordinator::restart_after_failure(const RankExit& first) {
  if (restarts_ >= rules_.max_restarts)
    return finish(first.shell_code(), "");
  ++restarts_;
  if (count_failure(first.host, can_spare_a_host())) {
    for (const auto& [id, member] : members_) {
      if (member.planned_name == first.host)
        refuse(id, set_aside_text(first.host));
    }
    std::erase_if(members_,
                  [&](const auto& entry) { return entry.second.planned_name == first.host; });
  }
  const auto delay = back_off_.pause_after(now_ - round_began_);
  say_(cat("rank ",
           first.rank,
           " on host ",
           first.host,
           " failed: ",
           cause_and_error(first),
           "; starting all ranks again",
           pause_text(delay),
           " (restart ",
           restarts_,
           " of ",
           rules_.max_restarts,
           ")"));
  not_before_ = now_ + delay;
  regather();
}

// The hosts that are there stay; the next round begins when there are enough.
void Coordinator::regather() {
  phase_ = Phase::gathering;
  gathering_since_ = now_;
  next_word_ = now_ + kWordEvery;
  last_call_.reset();
  trouble_ = {};
  exits_.clear();
  for (auto& [id, member] : members_)
    member.in_round = member.ended = false;
}

// With enough hosts for a start, more may come until the last call is over.
void Coordinator::try_to_start() {
  if (now_ < not_before_)
    return;
  const auto there = std::ssize(members_);
  if (there >= rules_.max_hosts)
    return start(candidates());
  if (there >= rules_.min_hosts) {
    // A round that goes on with fewer hosts has heard from all that there are.
    const auto wait = round_ > 0 ? milliseconds(0) : rules_.last_call;
    if (!last_call_)
      last_call_ = now_ + wait;
    if (now_ >= *last_call_)
      return start(candidates());
  } else {
    last_call_.reset();
    if (now_ - gathering_since_ >= rules_.join_timeout)
      return finish_missing();
  }
  if (now_ < next_word_)
    return;
  next_word_ = now_ + kWordEvery;
  say_(cat("waiting for hosts: ", there, " of ", rules_.min_hosts, " there", missing_text()));
}

// Too few hosts have come in time.
void Coordinator::finish_missing() {
  finish(1,
         cat("rendezvous: expected ",
             plural(rules_.min_hosts, "host"),
             " within ",
             format_duration(rules_.join_timeout),
             ", got ",
             members_.size(),
             missing_text(),
             "; see whether the others were started and can reach this address"));
}

// Begins a round with these hosts, or ends the job if there is no plan for them. Where this process
// was asked to stop, or the time limit is over, that decides.
void Coordinator::start(const Strings& ids) {
  Order order;
  try {
    order = round_of(ids);
  } catch (const AskedToStop&) {
    return;
  } catch (const Error& error) {
    return finish(exit_code_of(error), error.message());
  }
  if (turn_away_second_agent(order))
    return;
  enter_round(order);
  orders_.push_back(std::move(order));
  for (const int signal : std::exchange(kept_signals_, {}))
    orders_.push_back({.kind = Order::Kind::signal, .round = round_, .signal = signal});
}

// The order for a next round of these hosts; nothing has changed yet. Throws: as the planner.
Order Coordinator::round_of(const Strings& ids) const {
  std::vector<HostFacts> hosts;
  std::map<std::string, int> seen;
  for (const auto& id : ids) {
    hosts.push_back(members_.at(id).facts);
    const int count = ++seen[hosts.back().host.name];
    if (count > 1)
      hosts.back().host.name += cat(".", count);  // two agents on one machine
  }
  Order order{.kind = Order::Kind::start,
              .hosts = ids,
              .num_hosts = int_size(ids),
              .run_folder = rules_.run_folder,
              .launch = rules_.launch};
  order.plan = planner_(std::move(hosts));
  const HostFacts& first = members_.at(ids.at(order.plan.ranks.at(0).host_index)).facts;
  order.round = round_ + 1;
  order.restart_count = restarts_;
  order.failures = failures_of_;
  order.set_aside = set_aside_;
  order.master_addr = first.address;
  order.master_port = first.master_port;
  order.store = first.store;
  return order;
}

// Takes over what the order says, also in a replay.
void Coordinator::enter_round(const Order& order) {
  phase_ = Phase::running;
  round_ = order.round;
  plan_ = order.plan;
  hosts_ = order.hosts;
  first_running_.clear();
  round_began_ = now_;
  trouble_ = {};
  trouble_.replaced = order.exits;
  exits_.clear();
  hosts_in_round_ = 0;
  some_have_ended_ = false;
  for (auto& [id, member] : members_)
    member.in_round = member.ended = false;
  for (int index = 0; const std::string& id : order.hosts) {
    const RankRange ranks = ranks_on_host(order.plan, index++);
    Member* const found = value_at(members_, id);
    if (found == nullptr)
      continue;  // in a replay: it was refused since
    Member& member = *found;
    member.in_round = true;
    ++hosts_in_round_;
    member.has_ranks = ranks.count > 0;
    member.planned_name =
        member.has_ranks ? order.plan.ranks.at(ranks.first).host : member.facts.host.name;
    if (member.seniority == 0)
      member.seniority = next_seniority_++;
  }
}

// The last order. Failures that stopped the round come before the ends that followed from them.
void Coordinator::finish(int exit_code, const std::string& reason) {
  Order order{.kind = Order::Kind::finish,
              .round = round_,
              .restart_count = restarts_,
              .reason = reason,
              .exit_code = exit_code};
  order.exits = trouble_.failures;
  auto told = mapped_to<IntSet>(order.exits, &RankExit::rank);
  for (const RankExit& exit : exits_) {
    if (told.insert(exit.rank).second)
      order.exits.push_back(exit);
  }
  if (exit_code == 0)
    order.exits.clear();
  orders_.push_back(std::move(order));
  phase_ = Phase::finished;
}

// All members, in the order of their ids.
Strings Coordinator::live_hosts() const {
  const auto ids = std::views::keys(members_);
  return {ids.begin(), ids.end()};
}

std::string Coordinator::name_of(const std::string& id) const {
  const Member* const member = value_at(members_, id);
  if (member == nullptr)
    return id;
  const HostFacts& facts = member->facts;
  return facts.address.empty() ? facts.host.name : cat(facts.host.name, " (", facts.address, ")");
}

// The plan and the ids of the round's hosts are those of one round.
size_t Coordinator::remembered() const {
  return members_.size() + holders_.size() + newcomers_.size() + failures_of_.size() +
         failed_.size() + set_aside_.size() + trouble_.failures.size() + exits_.size();
}

}  // namespace muster
