// The runner's loop starts what the schedule says, waits for ends, and counts those that are on the
// disk. Two rules keep a killed run resumable. A start's record is handed to the kernel before the
// process begins, and an end counts (frees what comes after it, is shown) only when its record is
// on the disk. Between the two, an end is pending.
#include "muster/tasks/runner.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lists.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/tasks/hosts/task_log.h"
#include "muster/tasks/run_hosts.h"
#include "muster/tasks/task_exit.h"

namespace muster {

namespace {

// How often the runner looks around when nothing happens, how long a task has that is killed, how
// long lost hosts have to come back where the run says nothing, how long there may be no process or
// descriptor for any start, and how long a launcher may try to start its ranks.
constexpr milliseconds kTickEvery{200};
constexpr milliseconds kShortGrace{0};
constexpr milliseconds kLostPatience{60'000};
constexpr milliseconds kShortagePatience{60'000};
constexpr milliseconds kTriesToBegin{10'000};
constexpr size_t kMostNamed = 20;  // of the processes that a task has left behind

// A task that runs.
struct LiveTask {
  size_t task = 0;
  Allocation where{};
  Fd log{};
  std::exception_ptr problem{};  // why it cannot begin
  EventLoop::Handle time_limit = 0;
  TimePoint began = Clock::now();
  bool interrupted = false;  // asked to end by the run
};

// An end whose record is on its way to the disk.
struct PendingEnd {
  uint64_t record = 0;
  size_t task = 0;
  AttemptEnd how = AttemptEnd::done;
  bool starved = false;  // refused, for want of processes or descriptors
};

// How long something has been in the way of all that is left of a run.
class Standstill {
 public:
  // Is told again and again whether it is there. True when that begins now.
  bool is_there(bool there) {
    const bool begins = there && !since_;
    if (!there)
      since_.reset();
    if (begins)
      since_ = Clock::now();
    return begins;
  }

  // Whether it has lasted for so long; nothing: it may last for ever.
  bool lasts(OptionalDuration limit) const {
    return since_ && limit && Clock::now() - *since_ >= *limit;
  }

 private:
  OptionalTime since_;
};

// One run, from its first start to its last record.
class TaskRunner {
 public:
  TaskRunner(const Tasks& tasks,
             TaskSchedule& schedule,
             Journal& journal,
             TaskResults results,
             const RunnerOptions& options,
             RunView& view)
      : tasks_(tasks),
        schedule_(schedule),
        journal_(journal),
        options_(options),
        view_(view),
        hosts_(schedule, options, view, [this](const auto& mark) { record_mark(mark); }) {
    outcome_.results = std::move(results);
    hosts_.loop().watch_readable(journal.fd(), [this] { journal_.take_notice(); });
  }

  // Each turn starts what can start, waits for ends or the next tick, and counts what is on the
  // disk.
  RunOutcome run() {
    wait_for_hosts();
    hosts_.look();
    while (!finished()) {
      try_lost();
      guarded([&] { start_tasks(); });
      watch_lost();
      view_.tick(schedule_, now());
      for (const TaskEnd& end : hosts_.wait(wait_until()))
        on_end(end);
      take_signals();
      guarded([&] { settle(); });
      watch_clock();
    }
    guarded([&] {
      journal_.finish(text_or(outcome_.error, "finished"), now());
      journal_.sync();
    });
    view_.tick(schedule_, now());
    return std::move(outcome_);
  }

 private:
  void note(const auto&... parts) const { view_.note(cat(parts...)); }

  void record_mark(const std::string& mark) {
    journal_.mark(mark, now());
    journal_.write();
  }

  // Nothing is placed before every host has told what other jobs hold there.
  void wait_for_hosts() {
    while (!ending_ && !draining_ && !hosts_.ready()) {
      hosts_.wait(Clock::now() + kTickEvery);
      take_signals();
      watch_clock();
    }
  }

  double now() const { return options_.began + seconds_since(started_); }

  bool finished() const {
    return live_.empty() && pending_.empty() && (ending_ || schedule_.finished());
  }

  // Does work that writes the journal. The run stands on it: without it nothing more is started,
  // and what runs is ended.
  template <class Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      if (journal_failed_)
        return;
      journal_failed_ = true;
      pending_.clear();
      fail_run(error.message(), "; muster ends all tasks; mend this, then resume with --resume");
    }
  }

  // The next tick, or the end of the next back-off if that comes first.
  TimePoint wait_until() {
    const auto moment = Clock::now();
    const auto tick = moment + kTickEvery;
    const auto next = schedule_.next_time();
    if (!next)
      return tick;
    const std::chrono::duration<double> left(std::max(0.0, *next - now()));
    return std::min(tick, moment + std::chrono::duration_cast<Clock::duration>(left));
  }

  // Starts what can be started now. All records are written before anything runs, so that what runs
  // is known whatever becomes of this process.
  void start_tasks() {
    Ints fresh;
    try {
      prepare_all(fresh);
      journal_.write();
    } catch (...) {
      for (const int id : fresh)
        withdraw(id);
      throw;
    }
    for (const int id : fresh)
      spawn(id);
    if (live_.empty() && !pending_.empty())
      journal_.hurry();
  }

  // The schedule is asked again when another job was faster: the task may go to other GPUs.
  void prepare_all(Ints& fresh) {
    bool refused = true;
    while (refused && !ending_) {
      refused = false;
      for (TaskStart& start : schedule_.start(now()))
        refused |= !prepare(start, fresh);
    }
  }

  // Takes the leases and writes the record. False when another job has a GPU of it.
  bool prepare(TaskStart& start, Ints& fresh) {
    LiveTask live{.task = start.task, .where = std::move(start.where)};
    const int id = ++last_id_;
    try {
      const StartOrder order{.id = id, .task = &tasks_[start.task], .where = &live.where};
      if (!hosts_.at(live.where.host).reserve(order)) {
        schedule_.again(start.task);
        return false;
      }
    } catch (const Error&) {
      live.problem = std::current_exception();  // its own failure, and not the run's
    }
    TaskResult& result = outcome_.results[start.task];
    const int number = result.attempts.empty() ? 0 : result.attempts.back().attempt + 1;
    TaskAttempt attempt = attempt_of(schedule_.pool(), live.where, number);
    attempt.began = now();
    attempt.log = log_of(start.task, number);
    result.state = TaskState::running;
    result.reason.clear();
    journal_.start(tasks_[start.task].name, attempt, {live.where.memory_bytes, live.where.cpus});
    result.attempts.push_back(std::move(attempt));
    live_.emplace(id, std::move(live));
    fresh.push_back(id);
    return true;
  }

  // The path of the attempt's log.
  std::string log_of(size_t task, int attempt) const {
    const auto& name = tasks_[task].name;
    return cat(task_folder_of(options_.facts.run_dir, name, task), "/", attempt, ".log");
  }

  // Undoes the preparation of a task that cannot begin: nothing waits for its end.
  void withdraw(int id) {
    const auto found = live_.find(id);
    TaskResult& result = outcome_.results[found->second.task];
    result.state = TaskState::waiting;
    result.attempts.pop_back();
    hosts_.forget(id);
    schedule_.release(found->second.task);
    live_.erase(found);
  }

  // Starts a task that was prepared. One that cannot begin has ended by that.
  void spawn(int id) {
    LiveTask& live = live_.at(id);
    const Task& task = tasks_[live.task];
    const TaskAttempt& attempt = outcome_.results[live.task].attempts.back();
    try {
      live.log = open_task_log(attempt.log);
      if (live.problem)
        std::rethrow_exception(live.problem);
      hosts_.at(live.where.host)
          .start({.id = id,
                  .task = &task,
                  .attempt = attempt.attempt,
                  .where = &live.where,
                  .log = attempt.log,
                  .log_fd = live.log.get()});
    } catch (const Error& error) {
      hosts_.forget(id);
      on_end(end_without_start(id, error));
      return;
    }
    view_.started(live.task, attempt);
    if (task.time_limit)
      live.time_limit =
          hosts_.loop().call_at(Clock::now() + *task.time_limit, [this, id] { on_late(id); });
  }

  // The attempt's own time limit is over.
  void on_late(int id) {
    LiveTask& live = live_.at(id);
    live.time_limit = 0;
    outcome_.results[live.task].attempts.back().timed_out = true;
    hosts_.at(live.where.host).end(id, options_.facts.grace);
  }

  // Judges the end and has it recorded. The task's devices are free from here on; all else that
  // follows waits for the record.
  void on_end(const TaskEnd& end) {
    const auto found = live_.find(end.exit.exit.id);
    LiveTask live = std::move(found->second);
    live_.erase(found);
    hosts_.loop().cancel(live.time_limit);
    const Task& task = tasks_[live.task];
    TaskResult& result = outcome_.results[live.task];
    TaskAttempt& attempt = result.attempts.back();
    attempt.ended = now();
    take_exit(task, end, attempt);
    tell_processes(task, live.where, end.exit);
    schedule_.release(live.task);
    const bool starved = end.kind == TaskEnd::Kind::starved;
    const bool is_refusal = starved || end.kind == TaskEnd::Kind::refused;
    if (!is_refusal)
      result.last_json = result_in_log(live.log.get(), attempt.log);
    const AttemptEnd how = judge_end(task, end, standing_of(live), result);
    if (!journal_failed_) {
      guarded([&] {
        const uint64_t record =
            journal_.end(task.name, attempt, how, result.reason, result.last_json);
        pending_.push_back({record, live.task, how, starved});
      });
    }
    if (how == AttemptEnd::refused)
      result.attempts.pop_back();  // the next start is the same attempt
    if (!is_refusal)
      schedule_.end_pause_of_starved();
    note_room(live.task, starved);
    watch_shortage(starved, end.why_not);
  }

  void note_room(size_t task, bool starved) {
    if (starved) {
      without_room_.insert(task);
    } else {
      without_room_.erase(task);
    }
  }

  // Whether a task runs for sure. The launcher of one that found no room before may soon end of
  // that again.
  bool any_runs() const {
    const TimePoint begun = Clock::now() - kTriesToBegin;
    return any_of(live_, [&](const auto& entry) {
      const LiveTask& live = entry.second;
      const bool may_starve = tasks_[live.task].ranks > 1 && without_room_.contains(live.task);
      return !may_starve || live.began <= begun;
    });
  }

  // Tasks that end give back what others lack. When none runs, and none could begin for so long,
  // nothing will. But what waits for other jobs' GPUs may begin on those, and without --wait it
  // waits as long as they are held.
  void watch_shortage(bool starved, const std::string& why) {
    const bool others_hold = hosts_.any_held() && schedule_.waits_for_gpus();
    starving_.is_there(starved && (options_.wait || !others_hold));
    const milliseconds patience = options_.wait.value_or(kShortagePatience);
    if (ending_ || any_runs() || !starving_.lasts(patience))
      return;
    fail_run(cat("expected to start a task, got no room for any in ",
                 format_duration(patience),
                 " (",
                 why,
                 ")"),
             "; then --resume goes on");
  }

  RunStanding standing_of(const LiveTask& live) const {
    return {.interrupted = live.interrupted,
            .ending = ending_,
            .draining = draining_,
            .why_ended = why_ended_,
            .allow_nan = options_.allow_nan,
            .failures = schedule_.failures(live.task)};
  }

  // Says what the task has left behind: what was killed, and what still runs and may use its GPUs.
  void tell_processes(const Task& task, const Allocation& where, const PoolExit& exit) {
    const auto name = printable(task.name);
    if (!exit.ended.empty())
      note(name,
           " left processes behind, which were ended: ",
           join_first(exit.ended, ", ", kMostNamed));
    if (!exit.killed.empty())
      note(name,
           " left processes behind, which were killed: ",
           join_first(exit.killed, ", ", kMostNamed));
    for (const auto& survivor : exit.survivors)
      note("could not end ", survivor);
    if (!exit.unclear.empty())
      note(name,
           ", or a task that still runs, has left ",
           join(exit.unclear, ", "),
           " behind; it is ended with the last of them");
    const bool any_left = !exit.unclear.empty() || !exit.survivors.empty();
    if (any_left && !where.gpus.empty())
      note("no other task gets what ", name, " had of its GPUs until that process has ended");
  }

  // Counts the ends whose records are on the disk by now, in their order.
  void settle() {
    const uint64_t on_disk = pending_.empty() ? 0 : journal_.on_disk();
    while (!pending_.empty() && pending_.front().record <= on_disk) {
      const PendingEnd end = pending_.front();
      pending_.pop_front();
      count(end);
    }
  }

  void count(const PendingEnd& end) {
    const TaskResult& result = outcome_.results[end.task];
    const Indices skipped = tell_schedule(end, result);
    if (end.how == AttemptEnd::refused && !ending_)
      view_.refused(end.task, result, end.starved);
    if (end.how == AttemptEnd::refused)
      return;
    view_.ended(end.task, result);
    if (!skipped.empty())
      skip(skipped, end.task);
    if (end.how == AttemptEnd::failed && options_.fail_fast && !ending_)
      end_for(cat(printable(tasks_[end.task].name), " failed (--fail-fast)"));
  }

  // Returns the tasks that will never start, since this one has failed.
  Indices tell_schedule(const PendingEnd& end, const TaskResult& result) {
    switch (end.how) {
      case AttemptEnd::done:
        schedule_.done(end.task);
        break;
      case AttemptEnd::failed:
      case AttemptEnd::again:
        return schedule_.failed(end.task, now()).skipped;
      case AttemptEnd::stopped: {
        const TaskAttempt& attempt = result.attempts.back();
        schedule_.stopped(end.task, *attempt.ended - attempt.began, now());
        break;
      }
      case AttemptEnd::interrupted:
        schedule_.again(end.task);
        break;
      case AttemptEnd::refused:
        if (end.starved) {
          schedule_.starved(end.task, now());
        } else {
          schedule_.again(end.task);
        }
    }
    return {};
  }

  // Tasks that come after one that failed never start.
  void skip(const Indices& tasks, size_t because) {
    const auto reason = cat("after ", printable(tasks_[because].name), ", which failed");
    for (const size_t task : tasks) {
      outcome_.results[task].state = TaskState::skipped;
      outcome_.results[task].reason = reason;
      journal_.skip(tasks_[task].name, reason, now());
    }
    view_.skipped(tasks, reason);
  }

  // The first SIGINT lets what runs end by itself. Any other signal ends the tasks, and one more
  // kills them.
  void take_signals() {
    while (const auto signal = hosts_.take_signal()) {
      if (*signal == SIGINT && !draining_ && !ending_) {
        drain();
        continue;
      }
      const auto name = signal_name(*signal);
      outcome_.stopped_by = *signal;
      why_ended_ = cat("ended by ", name, " to the run");
      const bool insist = ending_;
      note(name + (insist ? ": every task is killed" : ": every task is ended"));
      end_all(insist ? kShortGrace : options_.facts.grace);
    }
  }

  void drain() {
    draining_ = true;
    outcome_.stopped_by = SIGINT;
    schedule_.drain();
    const std::string what_goes_on =
        live_.size() == 1
            ? "1 task keeps running to its end; a second SIGINT ends it"
            : cat(live_.size(), " tasks keep running to their end; a second SIGINT ends them");
    note("SIGINT: muster starts no new task; ", what_goes_on);
  }

  void end_for(const std::string& why) {
    why_ended_ = why;
    note(why, "; every task is ended");
    end_all(options_.facts.grace);
  }

  // Nothing starts any more, and what runs has so long to end.
  void end_all(milliseconds grace) {
    ending_ = true;
    schedule_.drain();
    for (auto& [id, live] : live_) {
      live.interrupted = true;
      hosts_.at(live.where.host).end(id, grace);
    }
  }

  // Hosts are only tried while something could still start on them.
  void try_lost() {
    if (ending_ || draining_)
      return hosts_.stop_trying();
    guarded([&] { hosts_.try_lost(); });
  }

  // When hosts are lost, there may be nothing left that could run what waits, until one is back.
  void watch_lost() {
    if (ending_)
      return;
    const Strings lost = hosts_.lost();
    const bool is_stuck = !lost.empty() && only_waits() && !hosts_.any_held();
    const bool begins = stuck_.is_there(is_stuck);
    const bool tries = hosts_.tries_any();
    const milliseconds patience = tries ? options_.wait.value_or(kLostPatience) : milliseconds(0);
    const auto tasks = plural(schedule_.count(TaskState::waiting), "task");
    const auto time = format_duration(patience);
    if (begins && patience > milliseconds(0))
      note(tasks, " can only run on hosts that were lost; one has ", time, " to come back");
    if (!stuck_.lasts(patience))
      return;
    const auto in_vain = tries ? cat("; did not come back in ", time) : "";
    fail_run(cat("expected hosts that can run the ",
                 tasks,
                 " that wait, got none (",
                 join(lost, "; "),
                 in_vain,
                 "); --resume goes on, with other --hosts too"));
  }

  // Nothing runs, and nothing will by itself.
  bool only_waits() const {
    return live_.empty() && pending_.empty() && !schedule_.next_time() && !schedule_.finished();
  }

  // The run cannot go on. `next`: what the user can do, beside what the outcome says.
  void fail_run(const std::string& why, const char* next = "") {
    outcome_.error = why;
    note(why, next);
    end_all(options_.facts.grace);
  }

  // Watches the run's own time limit, and GPUs that other jobs do not give back.
  void watch_clock() {
    if (ending_)
      return;
    const auto limit = options_.time_limit;
    if (limit && Clock::now() - started_ >= *limit) {
      outcome_.timed_out = true;
      return end_for(cat("the run's time limit of ", format_duration(*limit), " was over"));
    }
    hosts_.look();
    held_up_.is_there(only_waits() && hosts_.any_held());
    if (held_up_.lasts(options_.wait))
      fail_run(cat("expected other jobs' GPUs to become free, got none in ",
                   format_duration(*options_.wait),
                   " (",
                   hosts_.held(),
                   ")"));
  }

  const Tasks& tasks_;
  TaskSchedule& schedule_;
  Journal& journal_;
  const RunnerOptions& options_;
  RunView& view_;
  RunHosts hosts_;
  RunOutcome outcome_;
  TimePoint started_ = Clock::now();
  std::unordered_map<int, LiveTask> live_;
  std::deque<PendingEnd> pending_;
  int last_id_ = 0;
  bool draining_ = false;
  bool ending_ = false;
  bool journal_failed_ = false;
  std::string why_ended_;
  Standstill stuck_;                         // for hosts that were lost
  Standstill held_up_;                       // by other jobs
  std::unordered_set<size_t> without_room_;  // tasks whose last start found no room
  Standstill starving_;                      // for processes, descriptors or memory
};

}  // namespace

RunOutcome run_tasks(const Tasks& tasks,
                     TaskSchedule& schedule,
                     Journal& journal,
                     TaskResults results,
                     const RunnerOptions& options,
                     RunView& view) {
  results.resize(tasks.size());
  return TaskRunner(tasks, schedule, journal, std::move(results), options, view).run();
}

}  // namespace muster
