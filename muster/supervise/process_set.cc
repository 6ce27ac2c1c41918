#include "muster/supervise/process_set.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/supervise/descendants.h"
#include "muster/supervise/leftovers.h"

namespace muster {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookAtLeftoversLate{100};  // when it has taken a while already
// Orphans that end during the job stay zombies until somebody looks.
constexpr milliseconds kReapEvery{2'000};
// Failures this close may be one's cause and the others' consequence, whatever their order.
constexpr milliseconds kTogether{5};
constexpr milliseconds kAwaitAnEnd{2'000};  // that has begun, or must have
constexpr milliseconds kLookForCauseEvery{20};

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

ProcessSet::ProcessSet(ProcessSetOptions options) : options_(std::move(options)) {
  signals_.emplace(caught_signals(options_.stop_signals, options_.pass_signals));
  parent_.emplace();
  loop_.watch_readable(signals_->fd(), [this] { take_signals(); });
}

ProcessSet::~ProcessSet() {
  if (!members_.empty())
    kill_all();
  sentinel_.reset();
}

void ProcessSet::post_sentinel(const std::vector<std::string>& marks) {
  if (sentinel_ || sentinel_failed_)
    return;
  try {
    sentinel_ = std::make_unique<Sentinel>(marks);
    parent_->add_foreign(sentinel_->pid());
  } catch (const Error& error) {
    sentinel_failed_ = true;
    log(LogLevel::warn,
        cat("the sentinel did not start (",
            error.message(),
            "): if this process is killed by SIGKILL, processes that ranks have started stay "
            "behind"));
  }
}

void ProcessSet::spawn(int id, ChildOptions options) {
  post_sentinel();
  if (!options.open_files)
    options.open_files = parent_->old_open_files();
  auto member = std::make_unique<Member>();
  member->id = id;
  member->child = spawn_child(options);
  Member* const raw = member.get();
  members_.push_back(std::move(member));
  if (sentinel_)
    sentinel_->guard(raw->child.pid);
  raw->watch = loop_.watch_readable(raw->child.pidfd.get(), [this, raw] { on_death(*raw); });
}

pid_t ProcessSet::pid_of(int id) const {
  const auto found = std::find_if(
      members_.rbegin(), members_.rend(), [&](const auto& member) { return member->id == id; });
  return found == members_.rend() ? -1 : (*found)->child.pid;
}

void ProcessSet::forget(pid_t pid) {
  const auto member = std::find_if(members_.begin(), members_.end(), [&](const auto& candidate) {
    return candidate->child.pid == pid && candidate->exit;
  });
  if (member == members_.end())
    return;
  const auto exit = std::find_if(result_.exits.begin(),
                                 result_.exits.end(),
                                 [&](const ChildExit& candidate) { return candidate.pid == pid; });
  const auto at = static_cast<size_t>(exit - result_.exits.begin());
  result_.exits.erase(exit);
  if (at < made_good_)
    --made_good_;
  if (first_failure_ != kNone && at < first_failure_)
    --first_failure_;
  ::kill(-pid, SIGKILL);
  if (sentinel_)
    sentinel_->release(pid);
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
    first_failure_ = result_.exits.size() - 1;
  if (!deadline_)
    deadline_ = exit.at + kTogether;
}

End ProcessSet::evidence(const ChildExit& exit) const {
  return {.exit_code = exit.exit_code,
          .signal = exit.signal,
          .account = rules_.account ? rules_.account(exit) : Account::none};
}

// Of the failures that came together with the first.
void ProcessSet::put_cause_first() {
  if (first_failure_ == kNone)
    return;
  const auto first = result_.exits.begin() + static_cast<std::ptrdiff_t>(first_failure_);
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
  while (const auto signal = signals_->take())
    on_signal(*signal);
}

int ProcessSet::stop_requested() {
  take_signals();
  return result_.stopped_by;
}

void ProcessSet::on_signal(int signal) {
  if (contains(options_.stop_signals, signal)) {
    if (result_.stopped_by != 0 && signal == SIGINT && !members_.empty()) {
      kill_now();
    } else if (result_.stopped_by == 0) {
      result_.stopped_by = signal;
      if (phase_ == Phase::running && !members_.empty())
        stop_as_asked(signal);
    } else {
      signal_mains(signal, true);
    }
    return;
  }
  if (signal == SIGTSTP && !options_.goes_on_because.empty())
    return log(LogLevel::warn,
               cat("SIGTSTP (Ctrl-Z) has no effect here: ", options_.goes_on_because));
  if (signal == SIGTSTP || signal == SIGCONT) {
    // The terminal's job control reaches only us: the children have process groups of their own.
    signal_groups(signal);
    if (signal == SIGTSTP)
      ::raise(SIGSTOP);
    return;
  }
  signal_mains(signal, false);
}

void ProcessSet::signal_mains(int signal, bool to_end) {
  for (const auto& member : members_) {
    if (member->exit)
      continue;
    if (member->is_spared && phase_ == Phase::stopping) {
      if (to_end)
        member->spared_of = signal;
    } else {
      tell(*member, signal, to_end);
    }
  }
}

void ProcessSet::tell(Member& member, int signal, bool to_end) {
  if (to_end && member.told.empty())
    member.was_exiting = process_status(member.child.pid).is_exiting;
  if (to_end)
    member.told.insert(signal);
  if (to_end)
    member.sent_signal = signal;
  // As a terminal does: a shell that gets Ctrl-C waits for what it runs to end of that too.
  const bool to_group = to_end && (signal == SIGINT || signal == SIGQUIT);
  ::kill(to_group ? -member.child.pid : member.child.pid, signal);
}

void ProcessSet::signal_groups(int signal) const {
  for (const auto& member : members_)
    ::kill(-member->child.pid, signal);
}

// What failed a moment ago may be made good yet, and what is spawned then spared.
bool ProcessSet::stop_as_asked(int signal) {
  const bool has_failed = first_failure_ != kNone && !make_good();
  const std::set<int> spared = rules_.before_stop ? rules_.before_stop() : std::set<int>();
  const auto is_told = [&](const auto& member) {
    return !member->exit && !spared.contains(member->id);
  };
  if (std::any_of(members_.begin(), members_.end(), is_told)) {
    for (const auto& member : members_)
      member->is_spared = !member->exit && spared.contains(member->id);
  }
  stop(signal);
  return !has_failed;
}

void ProcessSet::tell_spared() {
  for (const auto& member : members_) {
    if (std::exchange(member->is_spared, false) && !member->exit && member->spared_of != 0)
      tell(*member, member->spared_of, true);
  }
}

// The main processes first: theirs is the chance to write a checkpoint. What they started follows
// when they are gone (sweep).
void ProcessSet::stop(int signal) {
  put_cause_first();
  phase_ = Phase::stopping;
  rules_.until.reset();  // it ends already
  deadline_ = Clock::now() + rules_.grace;
  if (rules_.on_stop)
    return rules_.on_stop(signal);
  signal_mains(signal, true);
  for (const auto& member : members_) {  // a stopped process could not obey
    if (!member->exit && process_status(member->child.pid).state == 'T')
      ::kill(member->child.pid, SIGCONT);
  }
}

void ProcessSet::end_all() {
  if (phase_ == Phase::running && !members_.empty())
    stop(SIGTERM);
}

void ProcessSet::end_all_now() {
  if (!members_.empty())
    kill_now();
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
  return std::any_of(members_.begin(), members_.end(), [](const auto& member) {
    return !member->exit && process_status(member->child.pid).is_exiting;
  });
}

// Whether all ends up to now are consequences: of one that has closed its connections, and is not
// dead yet.
bool ProcessSet::awaits_a_cause() const {
  if (Clock::now() >= result_.exits.at(first_failure_).at + kAwaitAnEnd)
    return false;
  return std::all_of(result_.exits.begin() + static_cast<std::ptrdiff_t>(made_good_),
                     result_.exits.end(),
                     [this](const ChildExit& exit) {
                       const Account account = evidence(exit).account;
                       return account == Account::lost_peer || account == Account::connection;
                     });
}

// Whether the failures that came together stop nothing, as others have taken their place.
bool ProcessSet::make_good() {
  if (!rules_.is_made_good || first_failure_ == kNone)
    return false;
  put_cause_first();
  std::vector<ChildExit> failed;
  for (size_t i = first_failure_; i < result_.exits.size(); ++i)
    if (result_.exits[i].failed())
      failed.push_back(result_.exits[i]);
  if (!rules_.is_made_good(failed))
    return false;
  first_failure_ = kNone;
  for (const ChildExit& exit : failed)
    ::kill(-exit.pid, SIGKILL);
  made_good_ = result_.exits.size();
  deadline_.reset();
  return true;
}

// True when waiting on is useless.
bool ProcessSet::on_timeout() {
  if (phase_ == Phase::killing)
    return true;
  if (phase_ == Phase::running && first_failure_ != kNone && awaits_an_end()) {
    deadline_ = Clock::now() + kTogether;
  } else if (phase_ == Phase::running && first_failure_ != kNone && awaits_a_cause()) {
    deadline_ = Clock::now() + kLookForCauseEvery;
  } else if (phase_ == Phase::running) {
    if (!make_good())
      stop(SIGTERM);
  } else {
    kill_now();
  }
  return false;
}

size_t ProcessSet::num_running() const {
  return static_cast<size_t>(std::count_if(
      members_.begin(), members_.end(), [](const auto& member) { return !member->exit; }));
}

bool ProcessSet::goes_on() const {
  if (num_running() > 0)
    return true;
  return phase_ == Phase::running && rules_.awaits_others &&
         (first_failure_ != kNone || rules_.awaits_others());
}

WaitResult ProcessSet::wait_all(const WaitRules& rules) {
  rules_ = rules;
  if (phase_ == Phase::running && result_.stopped_by != 0)
    stop(result_.stopped_by);
  auto next_reap = Clock::now() + kReapEvery;
  while (goes_on()) {
    loop_.run_once(
        std::min({deadline_.value_or(next_reap), rules_.until.value_or(next_reap), next_reap}));
    const auto now = Clock::now();
    if (phase_ == Phase::running && rules_.until && now >= *rules_.until) {
      // What has failed until now is the reason, even when it is still asked what came first.
      const bool was_going_on = goes_on();
      result_.timed_out = stop_as_asked(SIGTERM) && was_going_on;
    }
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
  return wait_all(rules_);
}

WaitResult ProcessSet::finish() {
  put_cause_first();  // one that took long to die may be it
  first_failure_ = kNone;
  sweep();
  if (sentinel_)
    sentinel_->forget_groups();
  for (const auto& member : members_) {
    loop_.cancel(member->exit ? 0 : member->watch);
    ::waitpid(member->child.pid, nullptr, member->exit ? 0 : WNOHANG);
  }
  members_.clear();
  phase_ = Phase::running;
  deadline_.reset();
  made_good_ = 0;
  rules_ = {};
  return std::exchange(result_, {});
}

// Children that are neither members nor were there before: what members started and left behind.
std::set<pid_t> ProcessSet::left_behind() const {
  std::set<pid_t> pids = own_children();
  for (const pid_t pid : parent_->foreign())
    pids.erase(pid);
  for (const auto& member : members_)
    pids.erase(member->child.pid);
  return pids;
}

// Whether the process is in the group of a member, which signal_groups reaches.
bool ProcessSet::is_in_a_group(pid_t pid) const {
  const pid_t group = ::getpgid(pid);
  return std::any_of(members_.begin(), members_.end(), [&](const auto& member) {
    return member->child.pid == group;
  });
}

// Ends what the members left: asks with SIGTERM, then insists. When the set was stopped they have
// until the stop's own deadline: behind a wrapper that went at once, one of them is the program
// that was to be stopped. Killing one process may bring its own children to us, so it looks again
// until there are none.
void ProcessSet::sweep() {
  const auto start = Clock::now();
  auto ask_until = phase_ == Phase::stopping ? deadline_.value_or(start)
                                             : start + std::min(rules_.grace, kAskLeftovers);
  bool groups_asked = false;
  LeftoverSweep leftovers;
  for (;;) {
    const std::set<pid_t> left = without_ended(left_behind());
    if (left.empty() && num_running() == 0)
      break;
    const auto now = Clock::now();
    if (phase_ == Phase::killing)
      ask_until = std::min(ask_until, now);  // also by a second Ctrl-C meanwhile
    if (now >= ask_until + (num_running() > 0 ? kLookAtLeftovers : rules_.kill_wait)) {
      result_.survivors = describe_all(left);
      break;
    }
    if (now >= ask_until) {
      leftovers.kill(left);
      signal_groups(SIGKILL);
    } else {
      if (!std::exchange(groups_asked, true))
        signal_groups(SIGTERM);
      for (const pid_t pid : left) {
        if (is_in_a_group(pid))
          leftovers.note_asked(pid);
      }
      leftovers.ask(left);
    }
    loop_.run_once(now + std::clamp<Clock::duration>(
                             (now - start) / 20, kLookAtLeftovers, kLookAtLeftoversLate));
  }
  result_.killed = leftovers.killed();
}

std::vector<std::string> ProcessSet::describe_all(const std::set<pid_t>& leftovers) const {
  std::vector<std::string> survivors;
  for (const auto& member : members_) {
    if (!member->exit)
      survivors.push_back(describe_process(member->child.pid));
  }
  for (const pid_t pid : leftovers)
    survivors.push_back(describe_process(pid));
  return survivors;
}

}  // namespace muster
