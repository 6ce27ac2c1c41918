// A member's death is seen through its pidfd, and it is reported (settle) only when nothing is left
// of what it started. Leftovers become children of this process, the subreaper. Who has started one
// is read from its process group or its environment, or else guessed from its age and from the
// files that it has open. While a leftover may belong to a member that still runs, it is let be.
#include "muster/supervise/process_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/process_status.h"

namespace muster {

namespace {

// While it becomes another program, a process shows nothing of itself for a moment.
constexpr milliseconds kShowsItself{20};

ProcessId process_id_of(pid_t pid) {
  return {.pid = pid, .started_ticks = process_start_ticks(pid)};
}

// The files of a child that tell it from others: this process's own outputs tell nothing.
FileIds outputs_of(const ChildOptions& options) {
  FileIds outputs;
  Ints given = options.inherit_fds;
  given.insert(given.end(), {options.stdout_fd, options.stderr_fd});
  for (const int fd : given) {
    if (const auto file = file_of(fd))
      outputs.insert(*file);
  }
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (const auto own = file_of(fd))
      outputs.erase(*own);
  }
  return outputs;
}

bool have_one_in_common(const FileIds& some, const FileIds& others) {
  return any_of(some, [&](const FileId& file) { return others.contains(file); });
}

// Asks by waitid with WNOWAIT, which leaves the zombie.
bool is_zombie(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, pid, &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid == pid;
}

}  // namespace

ProcessPool::ProcessPool(ProcessPoolOptions options)
    : options_(std::move(options)), signals_(options_.stop_signals, options_.pass_signals) {
  loop_.watch_readable(signals_.fd(), [this] { take_signals(); });
  Strings marks;
  if (!options_.mark.empty())
    marks.push_back(options_.mark);
  sentinel_ = std::make_unique<Sentinel>(marks);
  parent_.add_foreign(sentinel_->pid());
}

ProcessPool::~ProcessPool() {
  kill_everything();
}

pid_t ProcessPool::spawn(int id, const std::string& name, ChildOptions options) {
  if (!options.open_files)
    options.open_files = parent_.old_open_files();
  auto member = std::make_unique<Member>();
  member->id = id;
  member->name = name;
  member->child = spawn_child(options);
  member->began = process_start_ticks(member->child.pid);
  member->outputs = outputs_of(options);
  Member* const raw = member.get();
  sentinel_->guard(raw->child.pid);
  raw->watch = loop_.watch_readable(raw->child.pidfd.get(), [this, raw] { on_death(*raw); });
  members_[id] = std::move(member);
  return raw->child.pid;
}

void ProcessPool::end(int id, milliseconds grace) {
  const auto found = members_.find(id);
  if (found == members_.end())
    return;
  Member& member = *found->second;
  if (member.has_ended || member.killing)
    return;
  const auto kill_at = Clock::now() + grace;
  member.kill_at = member.kill_at ? std::min(*member.kill_at, kill_at) : kill_at;
  ending_.insert(id);
  if (std::exchange(member.sent_signal, SIGTERM) != 0)
    return;  // once is enough: it may be saving a checkpoint
  ::kill(member.child.pid, SIGTERM);
  if (process_status(member.child.pid).state == 'T')
    ::kill(member.child.pid, SIGCONT);
}

void ProcessPool::on_death(Member& member) {
  ChildExit& exit = member.end.exit;
  exit = exit_of(member.child, member.id, member.sent_signal);
  loop_.cancel(member.watch);
  // If it was asked to end, what it left has the rest of its grace: behind a wrapper that went at
  // once, one of them is the program that was to end.
  if (!member.kill_at || member.killing)
    member.kill_at = exit.at + options_.ask_leftovers;
  member.killing = false;
  note_ended(member);
}

void ProcessPool::note_ended(Member& member) {
  member.has_ended = true;
  ending_.erase(member.id);
  ended_.push_back(member.id);
}

void ProcessPool::take_signals() {
  while (const auto signal = signals_.take()) {
    if (contains(options_.stop_signals, *signal))
      stops_.push_back(*signal);
    else
      pass_on(*signal);
  }
}

void ProcessPool::pass_on(int signal) {
  if (options_.on_pass)
    options_.on_pass(signal);
  if (is_request(signal) && running().empty())
    log_info(signal_name(signal), " came while nothing runs here that could get it");
  signal_children(signal);
  if (signal == SIGTSTP)
    ::raise(SIGSTOP);
}

Pids ProcessPool::running() const {
  Pids pids;
  for (const auto& [id, member] : members_) {
    if (!member->has_ended)
      pids.insert(member->child.pid);
  }
  return pids;
}

// The terminal's job control reaches only us: the children have process groups of their own. What
// starts later is not asked.
void ProcessPool::signal_children(int signal) {
  const Pids pids = running();
  if (pids.empty())
    return;
  if (is_request(signal)) {
    requests_.add(signal);
    requests_.tell(pids);
    return requests_.say_if_kept(signal);
  }
  const bool to_groups = is_one_of(signal, SIGTSTP, SIGCONT);
  for (const pid_t pid : pids)
    ::kill(to_groups ? -pid : pid, signal);
}

std::optional<int> ProcessPool::take_signal() {
  take_signals();
  if (stops_.empty())
    return std::nullopt;
  const int signal = stops_.front();
  stops_.erase(stops_.begin());
  return signal;
}

// Kills the members that were asked to end and had time enough.
void ProcessPool::insist(TimePoint now) {
  const IntSet ending = ending_;  // a copy: who is given up leaves the set
  for (const int id : ending) {
    Member& member = *members_[id];
    if (now < *member.kill_at)
      continue;
    if (member.killing) {
      note_unkillable(member, now);
      continue;
    }
    member.killing = true;
    member.sent_signal = SIGKILL;
    member.kill_at = now + options_.kill_wait;
    ::kill(-member.child.pid, SIGKILL);
    ::kill(member.child.pid, SIGKILL);
  }
}

// A member that survives SIGKILL counts as ended, and its process as a survivor.
void ProcessPool::note_unkillable(Member& member, TimePoint now) {
  const pid_t pid = member.child.pid;
  loop_.cancel(member.watch);
  member.end.exit = {
      .id = member.id, .pid = pid, .signal = SIGKILL, .sent_signal = SIGKILL, .at = now};
  give_up(member, {pid});
  note_ended(member);
}

PoolExits ProcessPool::wait(OptionalTime until) {
  const auto sooner = [&](TimePoint at) {
    until = until ? std::min(*until, at) : at;
  };
  for (const int id : ending_)
    sooner(*members_[id]->kill_at);
  if (!ended_.empty())
    sooner(Clock::now() + kLookAtLeftovers);  // they left something
  if (!requests_.empty())
    sooner(requests_.next_look());
  loop_.run_once(until);
  const auto now = Clock::now();
  insist(now);
  if (!requests_.empty() && now >= requests_.next_look())
    requests_.tell(running());
  return settle(now);
}

// The children that are neither members nor foreign: members have started them and left them
// behind. Those that have ended are reaped, and it is noted how they ended.
Pids ProcessPool::left_behind() {
  Pids left = children_.read();
  for (const pid_t pid : parent_.foreign())
    left.erase(pid);
  for (const auto& [id, member] : members_)
    left.erase(member->child.pid);
  if (options_.is_foreign)
    std::erase_if(left, options_.is_foreign);
  return without_ended(std::move(left), [&](pid_t pid, int status) {
    for (const int id : ended_)
      members_.at(id)->leftovers.note_end(pid, status);
  });
}

// The member that has started the process, as its group or its environment shows; null when neither
// does.
const ProcessPool::Member* ProcessPool::member_shown_by(pid_t pid) const {
  const pid_t group = ::getpgid(pid);
  const auto entries = options_.child_variable.empty() ? Strings() : environment_entries(pid);
  for (const auto& [id, member] : members_) {
    if (member->child.pid == group)
      return member.get();
    if (contains(entries, cat(options_.child_variable, "=", member->name)))
      return member.get();
  }
  return nullptr;
}

// A process that shows no member, such as a daemon that has emptied its environment, was started by
// a member that is older. If it has a file open that only some of these have, one of them did.
std::set<const ProcessPool::Member*> ProcessPool::suspects_of(pid_t pid) const {
  if (const Member* const shown = member_shown_by(pid))
    return {shown};
  const uint64_t began = process_start_ticks(pid);
  const FileIds files = open_files(pid);
  std::set<const Member*> older;
  std::set<const Member*> with_its_files;
  for (const auto& [id, member] : members_) {
    if (member->began > began)
      continue;
    older.insert(member.get());
    if (have_one_in_common(member->outputs, files))
      with_its_files.insert(member.get());
  }
  return with_its_files.empty() ? older : with_its_files;
}

ProcessPool::Suspects ProcessPool::suspects_of(const Pids& left) const {
  Suspects suspects;
  for (const pid_t pid : left) {
    if (!given_up_.contains(pid))
      suspects[pid] = suspects_of(pid);
  }
  return suspects;
}

// Returns the members of which nothing is left, in order of their ends, and forgets them.
PoolExits ProcessPool::settle(TimePoint now) {
  PoolExits exits;
  if (ended_.empty())
    return exits;
  const Pids left = left_behind();
  std::erase_if(given_up_, [](pid_t pid) { return process_start_ticks(pid) == 0; });
  const Suspects suspects = suspects_of(left);
  Ints still;
  for (const int id : ended_) {
    Member& member = *members_[id];
    if (!sweep(member, suspects, now)) {
      still.push_back(id);
      continue;
    }
    member.end.killed = member.leftovers.killed();
    if (member.sent_signal == 0)
      member.end.ended = member.leftovers.ended();
    exits.push_back(std::move(member.end));
  }
  ended_ = std::move(still);
  for (const PoolExit& exit : exits)
    forget(exit.exit.id);
  return exits;
}

ProcessPool::Leftovers ProcessPool::leftovers_of(const Member& member, const Suspects& left) {
  Leftovers leftovers;
  for (const auto& [pid, suspects] : left) {
    // A process that is dying has no environment any more, so one that was signalled stays its own.
    if (member.leftovers.has_signalled(pid))
      leftovers.own.insert(pid);
    if (!suspects.contains(&member))
      continue;
    const bool all_ended = all_of(suspects, [](const Member* one) { return one->has_ended; });
    if (all_ended || process_status(pid).is_exiting)
      leftovers.own.insert(pid);
    else
      leftovers.unclear.insert(pid);
  }
  return leftovers;
}

// Ends what the member left: asks with SIGTERM, then insists. Killing one process may bring its own
// children to us, so this is done again until it returns true: there are none. A process that
// another member which still runs may need is let be.
bool ProcessPool::sweep(Member& member, const Suspects& left, TimePoint now) {
  const auto [own, unclear] = leftovers_of(member, left);
  if (!own.empty() && now < *member.kill_at + options_.kill_wait) {
    if (now >= *member.kill_at) {
      member.leftovers.kill(own);
      ::kill(-member.child.pid, SIGKILL);
    } else {
      member.leftovers.ask(own);
    }
    return false;
  }
  if (!unclear.empty() && now < member.end.exit.at + kShowsItself)
    return false;
  give_up(member, own);
  for (const pid_t pid : unclear) {
    member.end.unclear.push_back(describe_process(pid));
    member.end.alive.push_back(process_id_of(pid));
  }
  return true;
}

// Survivors are told of once, and no member waits for them any more.
void ProcessPool::give_up(Member& member, const Pids& pids) {
  for (const pid_t pid : pids) {
    member.end.survivors.push_back(describe_process(pid));
    member.end.alive.push_back(process_id_of(pid));
    given_up_.insert(pid);
  }
}

bool ProcessPool::is_alive(const ProcessId& process) {
  return process_start_ticks(process.pid) == process.started_ticks &&
         !without_ended({process.pid}).empty();
}

// The member's zombie goes last: from then on its number may be somebody else's.
void ProcessPool::forget(int id) {
  const auto found = members_.find(id);
  const pid_t pid = found->second->child.pid;
  sentinel_->release(pid);
  requests_.forget(pid);
  ::waitpid(pid, nullptr, WNOHANG);
  members_.erase(found);
}

// Returns the members that are not dead yet.
Pids ProcessPool::kill_members() {
  Pids alive;
  for (const auto& [id, member] : members_) {
    const pid_t pid = member->child.pid;
    loop_.cancel(member->watch);
    ::kill(-pid, SIGKILL);
    if (!is_zombie(pid))
      alive.insert(pid);
  }
  return alive;
}

// There is no grace: whoever wanted to give some has done so.
void ProcessPool::kill_everything() {
  const auto give_up_at = Clock::now() + options_.kill_wait;
  for (;;) {
    // A dead member's children come to us, so leftovers are looked for after the members.
    Pids left = kill_members();
    left.merge(left_behind());
    if (left.empty())
      break;
    for (const pid_t pid : left)
      ::kill(pid, SIGKILL);
    if (Clock::now() >= give_up_at) {
      for (const pid_t pid : left)
        log_error("could not end ", describe_process(pid));
      break;
    }
    loop_.run_once(Clock::now() + kLookAtLeftovers);
  }
  while (!members_.empty())
    forget(members_.begin()->first);
  ending_.clear();
  ended_.clear();
}

}  // namespace muster
