// How it works: the set goes through phases, running, stopping, killing, and `deadline_` is the
// time at which the present one is over. Failures that come within a moment are gathered first,
// since the first to die need not be the cause; then they are made good, or the rest is stopped.
// When no member runs, finish() sweeps up what the members have started, which comes to this
// process as their subreaper. Zombies are kept until then, so that no number is used twice
// meanwhile.
#include "muster/supervise/process_set.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

constexpr milliseconds kLookAtLeftoversLate{100};  // when it has taken a while already
// Orphans that end during the job stay zombies until somebody looks.
constexpr milliseconds kReapEvery{2'000};
// Failures this close may be one's cause and the others' consequence, whatever their order.
constexpr milliseconds kTogether{5};
constexpr milliseconds kAwaitAnEnd{2'000};  // that has begun, or must have
constexpr milliseconds kLookForCauseEvery{20};

}  // namespace

ProcessSet::ProcessSet(ProcessSetOptions options)
    : options_(std::move(options)), signals_(options_.stop_signals, options_.pass_signals) {
  loop_.watch_readable(signals_.fd(), [this] { take_signals(); });
}

ProcessSet::~ProcessSet() {
  if (!members_.empty())
    kill_all();
  sentinel_.reset();
}

void ProcessSet::post_sentinel(const Strings& marks) {
  if (sentinel_ || sentinel_failed_)
    return;
  try {
    sentinel_ = std::make_unique<Sentinel>(marks);
    parent_.add_foreign(sentinel_->pid());
  } catch (const Error& error) {
    sentinel_failed_ = true;
    log_warning("the sentinel did not start (",
                error.message(),
                "): if this process is killed by SIGKILL, processes that ranks have started stay "
                "behind");
  }
}

void ProcessSet::spawn(int id, ChildOptions options) {
  post_sentinel();
  if (!options.open_files)
    options.open_files = parent_.old_open_files();
  auto member = std::make_unique<Member>();
  member->id = id;
  member->child = spawn_child(options);
  if (phase_ == Phase::stopping) {
    member->is_spared = true;
    member->spared_of = SIGTERM;
    spare_for_half_the_time();
  }
  Member* const raw = member.get();
  members_.push_back(std::move(member));
  if (sentinel_)
    sentinel_->guard(raw->child.pid);
  raw->watch = loop_.watch_readable(raw->child.pidfd.get(), [this, raw] { on_death(*raw); });
}

pid_t ProcessSet::pid_of(int id) const {
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
    if ((*member)->id == id)
      return (*member)->child.pid;
  }
  return -1;
}

void ProcessSet::forget(pid_t pid) {
  const auto member = std::ranges::find_if(members_, [pid](const auto& candidate) {
    return candidate->child.pid == pid && candidate->exit;
  });
  if (member == members_.end())
    return;
  const auto exit = std::ranges::find(result_.exits, pid, &ChildExit::pid);
  const std::ptrdiff_t at = exit - result_.exits.begin();
  result_.exits.erase(exit);
  if (at < made_good_)
    --made_good_;
  if (first_failure_ != kNone && at < first_failure_)
    --first_failure_;
  ::kill(-pid, SIGKILL);
  if (sentinel_)
    sentinel_->release(pid);
  requests_.forget(pid);
  ::waitpid(pid, nullptr, 0);  // from here on its number may be somebody else's
  members_.erase(member);
}

void ProcessSet::on_death(Member& member) {
  ChildExit exit = exit_of(member.child, member.id, member.sent_signal);
  const bool ended_by_itself = member.was_exiting && !member.told.contains(exit.signal);
  if (ended_by_itself)
    exit.sent_signal = 0;
  loop_.cancel(member.watch);
  member.exit = exit;
  result_.exits.push_back(exit);
  if (rules_.on_exit)
    rules_.on_exit(exit);
  if (phase_ == Phase::stopping)
    tell_spared();
  if (!exit.failed() || phase_ != Phase::running || !rules_.stop_on_failure)
    return;
  if (first_failure_ == kNone)
    first_failure_ = std::ssize(result_.exits) - 1;
  if (!deadline_)
    deadline_ = exit.at + kTogether;
}

// All that is known of why it failed.
End ProcessSet::evidence(const ChildExit& exit) const {
  return {.exit_code = exit.exit_code,
          .signal = exit.signal,
          .account = rules_.account ? rules_.account(exit) : Account::none};
}

// The cause is looked for among the failures that came together with the first.
void ProcessSet::put_cause_first() {
  if (first_failure_ == kNone)
    return;
  const auto first = result_.exits.begin() + first_failure_;
  std::vector<End> ends;
  std::vector<std::ptrdiff_t> places;
  for (auto exit = first; exit != result_.exits.end(); ++exit) {
    if (!exit->failed() || exit->sent_signal != 0)
      continue;
    ends.push_back(evidence(*exit));
    places.push_back(exit - first);
  }
  if (ends.empty())
    return;
  const auto cause = first + places[cause_among(ends).index];
  std::rotate(first, cause, cause + 1);  // the others stay in their order
}

void ProcessSet::take_signals() {
  while (const auto signal = signals_.take())
    on_signal(*signal);
}

int ProcessSet::stop_requested() {
  take_signals();
  return result_.stopped_by;
}

// The first stop signal stops the set and later ones are passed on; a second Ctrl-C kills at once.
void ProcessSet::on_stop_signal(int signal) {
  if (result_.stopped_by == 0) {
    result_.stopped_by = signal;
    if (phase_ == Phase::running && !members_.empty())
      stop_as_asked(signal);
  } else if (signal == SIGINT && !members_.empty()) {
    kill_as_asked();
  } else {
    pass_on(signal);
  }
}

void ProcessSet::on_signal(int signal) {
  if (contains(options_.stop_signals, signal))
    return on_stop_signal(signal);
  if (signal == SIGTSTP && !options_.goes_on_because.empty())
    return log_warning("SIGTSTP (Ctrl-Z) has no effect here: ", options_.goes_on_because);
  if (options_.on_pass)
    return options_.on_pass(signal);
  pass_on(signal);
  if (signal == SIGTSTP)
    ::raise(SIGSTOP);
}

void ProcessSet::pass_on(int signal) {
  if (rules_.pass_on) {
    rules_.pass_on(signal);
  } else {
    tell_all(signal);
  }
}

// The terminal's job control reaches only us: the children have process groups of their own.
void ProcessSet::tell_all(int signal) {
  if (signal == SIGKILL) {
    end_all_now();
  } else if (is_request(signal) && !contains(options_.stop_signals, signal)) {
    requests_.add(signal);
    tell_requests();
    requests_.say_if_kept(signal);
  } else if (signal == SIGTSTP || signal == SIGCONT) {
    signal_groups(signal);
  } else {
    signal_mains(signal, contains(options_.stop_signals, signal));
  }
}

// Members that are spared get a signal that is to end them later, when tell_spared() is called.
void ProcessSet::signal_mains(int signal, bool to_end) {
  for (Member* const member : running()) {
    const bool is_spared = member->is_spared && phase_ == Phase::stopping;
    if (!is_spared)
      tell(*member, signal, to_end);
    else if (to_end)
      member->spared_of = signal;
  }
}

// A member whose end had begun before it was first told to end has ended by itself, so that is
// looked up first.
void ProcessSet::tell(Member& member, int signal, bool to_end) {
  if (to_end) {
    if (member.told.empty())
      member.was_exiting = process_status(member.child.pid).is_exiting;
    member.told.insert(signal);
    member.sent_signal = signal;
  }
  // As a terminal does: a shell that gets Ctrl-C waits for what it runs to end of that too.
  const bool to_group = to_end && (signal == SIGINT || signal == SIGQUIT);
  ::kill(to_group ? -member.child.pid : member.child.pid, signal);
}

// A process whose end is under way is no place for a request.
void ProcessSet::tell_requests() {
  const auto pid_of = [](const Member* member) {
    return member->child.pid;
  };
  const bool is_time = is_waiting_ && !is_ending();
  requests_.tell(is_time ? mapped_to<Pids>(running(), pid_of) : Pids());
}

void ProcessSet::signal_groups(int signal) const {
  for (const auto& member : members_)
    ::kill(-member->child.pid, signal);
}

// A failure of a moment ago may be made good yet, and members that are spawned for it are spared.
bool ProcessSet::stop_as_asked(int signal) {
  const bool has_failed = first_failure_ != kNone && !make_good();
  const IntSet spared = rules_.before_stop ? rules_.before_stop() : IntSet();
  for (const auto& member : members_)
    member->is_spared = !member->exit && spared.contains(member->id);
  is_asked_ = !has_failed;
  stop(signal);
  return !has_failed;
}

// That is left of the grace period.
void ProcessSet::spare_for_half_the_time() {
  loop_.cancel(half_time_);
  const auto now = Clock::now();
  half_time_ = loop_.call_at(now + (*deadline_ - now) / 2, [this] { tell_spared(); });
}

void ProcessSet::tell_spared() {
  for (const auto& member : members_) {
    const bool was_spared = std::exchange(member->is_spared, false);
    if (was_spared && !member->exit && member->spared_of != 0)
      tell(*member, member->spared_of, true);
  }
}

// The main processes are stopped first: theirs is the chance to write a checkpoint. The processes
// that they started follow when they are gone (sweep).
void ProcessSet::stop(int signal) {
  put_cause_first();
  phase_ = Phase::stopping;
  rules_.until.reset();  // it ends already
  deadline_ = Clock::now() + rules_.grace;
  spare_for_half_the_time();
  if (rules_.on_stop)
    return rules_.on_stop(signal);
  signal_mains(signal, true);
  for (const Member* const member : running()) {  // a stopped process could not obey
    if (process_status(member->child.pid).state == 'T')
      ::kill(member->child.pid, SIGCONT);
  }
}

void ProcessSet::end_all() {
  if (phase_ == Phase::running && !members_.empty()) {
    stop(SIGTERM);
  } else if (phase_ == Phase::stopping) {
    is_asked_ = false;
    tell_spared();
  }
}

void ProcessSet::ask_all_to_stop() {
  if (phase_ == Phase::running && !members_.empty())
    stop_as_asked(SIGTERM);
}

void ProcessSet::end_all_now() {
  if (!members_.empty())
    kill_now();
}

// Children that are reached by other means first end what they have started elsewhere. Who asks
// again wants an end at once.
void ProcessSet::kill_as_asked() {
  if (!rules_.pass_on || std::exchange(has_passed_kill_on_, true))
    return kill_now();
  const auto soon = Clock::now() + rules_.kill_wait;
  deadline_ = std::min(deadline_.value_or(soon), soon);
  rules_.pass_on(SIGKILL);
}

void ProcessSet::kill_now() {
  phase_ = Phase::killing;
  rules_.until.reset();
  deadline_ = Clock::now() + rules_.kill_wait;
  signal_mains(SIGKILL, true);
  signal_groups(SIGKILL);
}

// Whether one whose end has begun is still to be waited for. On a busy machine its peers may
// notice, and be dead, long before it.
bool ProcessSet::awaits_an_end() const {
  if (Clock::now() >= result_.exits.at(first_failure_).at + kAwaitAnEnd)
    return false;
  return any_of(running(),
                [](const Member* member) { return process_status(member->child.pid).is_exiting; });
}

// Whether all ends up to now are consequences: of one that has closed its connections, and is not
// dead yet.
bool ProcessSet::awaits_a_cause() const {
  if (Clock::now() >= result_.exits.at(first_failure_).at + kAwaitAnEnd)
    return false;
  const auto is_consequence = [this](const ChildExit& exit) {
    const Account account = evidence(exit).account;
    return account == Account::lost_peer || account == Account::connection;
  };
  return std::all_of(result_.exits.begin() + made_good_, result_.exits.end(), is_consequence);
}

// Whether the failures that came together stop nothing, as others have taken their place.
bool ProcessSet::make_good() {
  if (!rules_.is_made_good || first_failure_ == kNone)
    return false;
  put_cause_first();
  ChildExits failed;
  std::copy_if(result_.exits.begin() + first_failure_,
               result_.exits.end(),
               std::back_inserter(failed),
               [](const ChildExit& exit) { return exit.failed(); });
  if (!rules_.is_made_good(failed))
    return false;
  first_failure_ = kNone;
  for (const ChildExit& exit : failed)
    ::kill(-exit.pid, SIGKILL);
  made_good_ = std::ssize(result_.exits);
  deadline_.reset();
  return true;
}

// The deadline of the present phase has come. True when waiting on is useless.
bool ProcessSet::on_timeout() {
  if (phase_ == Phase::killing)
    return true;
  const bool has_failed = first_failure_ != kNone;
  if (phase_ == Phase::stopping) {
    kill_now();
  } else if (has_failed && awaits_an_end()) {
    deadline_ = Clock::now() + kTogether;
  } else if (has_failed && awaits_a_cause()) {
    deadline_ = Clock::now() + kLookForCauseEvery;
  } else if (!make_good()) {
    stop(SIGTERM);
  }
  return false;
}

std::vector<ProcessSet::Member*> ProcessSet::running() const {
  auto members = mapped(members_, [](const auto& member) { return member.get(); });
  std::erase_if(members, [](const Member* member) { return member->exit.has_value(); });
  return members;
}

// With nobody running, the set goes on for those who will be spawned, and for failures that may be
// made good yet.
bool ProcessSet::goes_on() const {
  if (!running().empty())
    return true;
  const bool may_spawn = phase_ == Phase::running || stops_as_asked();
  if (!may_spawn || !rules_.awaits_others)
    return false;
  return first_failure_ != kNone || rules_.awaits_others();
}

// A failure of until now is the reason, even when it is still asked what came first.
void ProcessSet::stop_at_time_limit(TimePoint now) {
  if (phase_ != Phase::running || !rules_.until || now < *rules_.until)
    return;
  const bool was_going_on = goes_on();
  result_.timed_out = stop_as_asked(SIGTERM) && was_going_on;
}

WaitResult ProcessSet::wait_all(const WaitRules& rules) {
  rules_ = rules;
  is_waiting_ = true;
  if (phase_ == Phase::running && result_.stopped_by != 0)
    stop(result_.stopped_by);
  auto next_reap = Clock::now() + kReapEvery;
  while (goes_on()) {
    const auto next_look = requests_.empty() ? next_reap : requests_.next_look();
    loop_.run_once(std::min(
        {deadline_.value_or(next_reap), rules_.until.value_or(next_reap), next_reap, next_look}));
    const auto now = Clock::now();
    if (!requests_.empty() && now >= requests_.next_look())
      tell_requests();
    stop_at_time_limit(now);
    if (deadline_ && now >= *deadline_ && goes_on() && on_timeout())
      break;
    if (now >= next_reap) {
      (void)without_ended(left_behind());
      next_reap = now + kReapEvery;
    }
  }
  return finish();
}

WaitResult ProcessSet::kill_all() {
  kill_now();
  rules_.on_exit = {};  // whoever was to be told may be gone
  WaitResult ended = wait_all(rules_);
  result_.stopped_by = ended.stopped_by;
  return ended;
}

WaitResult ProcessSet::finish() {
  put_cause_first();  // one that took long to die may be it
  first_failure_ = kNone;
  sweep();
  if (sentinel_)
    sentinel_->forget_groups();
  for (const auto& member : members_) {
    loop_.cancel(member->watch);
    ::waitpid(member->child.pid, nullptr, member->exit ? 0 : WNOHANG);
  }
  members_.clear();
  requests_.forget_told();
  is_waiting_ = false;
  loop_.cancel(half_time_);
  phase_ = Phase::running;
  is_asked_ = false;
  deadline_.reset();
  made_good_ = 0;
  has_passed_kill_on_ = false;
  rules_ = {};
  return std::exchange(result_, {});
}

// The children that are neither members nor were there before: members have started them and left
// them behind.
Pids ProcessSet::left_behind() const {
  Pids pids = own_children();
  for (const pid_t pid : parent_.foreign())
    pids.erase(pid);
  for (const auto& member : members_)
    pids.erase(member->child.pid);
  return pids;
}

// The member whose group the process is in, which signal_groups reaches.
std::optional<int> ProcessSet::group_of(pid_t pid) const {
  const pid_t group = ::getpgid(pid);
  for (const auto& member : members_) {
    if (member->child.pid == group)
      return member->id;
  }
  return std::nullopt;
}

std::string ProcessSet::describe(pid_t pid) const {
  return rules_.describe ? rules_.describe(pid, group_of(pid)) : describe_process(pid);
}

// A process in a member's group is asked by a signal to the group, only once.
void ProcessSet::ask(LeftoverSweep& leftovers, const Pids& left, bool groups_too) const {
  for (const pid_t pid : left) {
    if (group_of(pid))
      leftovers.note_asked(pid);
  }
  if (groups_too)
    signal_groups(SIGTERM);
  leftovers.ask(left);
}

// Ends what the members left: asks with SIGTERM, then insists. When the set was stopped, the
// leftovers have until the stop's own deadline: behind a wrapper that went at once, one of them is
// the program that was to be stopped. Killing one process may bring its own children to us, so it
// looks again until there are none. A pause grows with the time that has passed.
void ProcessSet::sweep() {
  const auto start = Clock::now();
  auto ask_until = phase_ == Phase::stopping ? deadline_.value_or(start)
                                             : start + std::min(rules_.grace, kAskLeftovers);
  const bool by_itself = phase_ == Phase::running;
  bool groups_asked = false;
  LeftoverSweep leftovers([this](pid_t pid) { return describe(pid); });
  for (;;) {
    const Pids left = without_ended(
        left_behind(), [&](pid_t pid, int status) { leftovers.note_end(pid, status); });
    const bool has_running = !running().empty();
    if (left.empty() && !has_running)
      break;
    const auto now = Clock::now();
    if (phase_ == Phase::killing)
      ask_until = std::min(ask_until, now);  // also by a second Ctrl-C meanwhile
    const auto give_up_after = has_running ? kLookAtLeftovers : rules_.kill_wait;
    if (now >= ask_until + give_up_after) {
      result_.survivors = describe_all(left);
      break;
    }
    if (now >= ask_until) {
      leftovers.kill(left);
      signal_groups(SIGKILL);
    } else {
      ask(leftovers, left, !std::exchange(groups_asked, true));
    }
    const Clock::duration pause = (now - start) / 20;
    loop_.run_once(now +
                   std::clamp<Clock::duration>(pause, kLookAtLeftovers, kLookAtLeftoversLate));
  }
  result_.killed = leftovers.killed();
  if (by_itself)
    result_.ended = leftovers.ended();
}

// Members that still run count too.
Strings ProcessSet::describe_all(const Pids& leftovers) const {
  auto survivors = mapped(
      running(), [](const Member* const member) { return describe_process(member->child.pid); });
  for (const pid_t pid : leftovers)
    survivors.push_back(describe(pid));
  return survivors;
}

}  // namespace muster
