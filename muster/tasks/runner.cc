#include "muster/tasks/runner.h"

#include <signal.h>

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/tasks/hosts/task_log.h"
#include "muster/tasks/live_task.h"
#include "muster/tasks/run_hosts.h"
#include "muster/tasks/standstill.h"
#include "muster/tasks/task_exit.h"

namespace muster {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTickEvery{200};
constexpr milliseconds kShortGrace{0};
constexpr milliseconds kLostPatience{60'000};

class TaskRunner {
 public:
  TaskRunner(const std::vector<Task>& tasks,
             TaskSchedule& schedule,
             Journal& journal,
             std::vector<TaskResult> results,
             const RunnerOptions& options,
             RunView& view)
      : tasks_(tasks),
        schedule_(schedule),
        journal_(journal),
        options_(options),
        view_(view),
        hosts_(schedule, options, view, [this](const std::string& mark) {
          journal_.mark(mark, now());
          journal_.write();
        }) {
    outcome_.results = std::move(results);
    hosts_.loop().watch_readable(journal.fd(), [this] { journal_.take_notice(); });
  }

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
      journal_.finish(outcome_.error.empty() ? "finished" : outcome_.error, now());
      journal_.sync();
    });
    view_.tick(schedule_, now());
    return std::move(outcome_);
  }

 private:
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

  // The journal is what the run stands on: without it nothing more is started, and what runs is
  // ended.
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

  Clock::time_point wait_until() {
    const auto moment = Clock::now();
    auto until = moment + kTickEvery;
    if (const auto next = schedule_.next_time()) {
      const auto left =
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*next - now()));
      until = std::min(until, moment + std::max(left, Clock::duration(0)));
    }
    return until;
  }

  void start_tasks() {
    std::vector<int> fresh;
    try {
      while (!ending_) {
        bool refused = false;
        for (TaskStart& start : schedule_.start(now()))
          refused |= !prepare(start, fresh);
        if (!refused)
          break;  // else others may go where they can be had
      }
      journal_.write();  // before anything runs
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

  // Takes the leases and writes the record. False when another job has a GPU of it.
  bool prepare(TaskStart& start, std::vector<int>& fresh) {
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
    attempt.log = cat(task_folder_of(options_.facts.run_dir, tasks_[start.task].name, start.task),
                      "/",
                      number,
                      ".log");
    result.state = TaskState::running;
    result.reason.clear();
    journal_.start(tasks_[start.task].name, attempt, {live.where.memory_bytes, live.where.cpus});
    result.attempts.push_back(std::move(attempt));
    live_.emplace(id, std::move(live));
    fresh.push_back(id);
    return true;
  }

  // A task that was prepared and cannot begin: nothing waits for its end.
  void withdraw(int id) {
    const auto found = live_.find(id);
    TaskResult& result = outcome_.results[found->second.task];
    result.state = TaskState::waiting;
    result.attempts.pop_back();
    hosts_.forget(id);
    schedule_.release(found->second.task);
    live_.erase(found);
  }

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
    if (!task.time_limit)
      return;
    live.time_limit = hosts_.loop().call_at(Clock::now() + *task.time_limit, [this, id] {
      LiveTask& late = live_.at(id);
      late.time_limit = 0;
      outcome_.results[late.task].attempts.back().timed_out = true;
      hosts_.at(late.where.host).end(id, options_.facts.grace);
    });
  }

  void on_end(const TaskEnd& end) {
    const PoolExit& exit = end.exit;
    const auto found = live_.find(exit.exit.id);
    LiveTask live = std::move(found->second);
    live_.erase(found);
    hosts_.loop().cancel(live.time_limit);
    TaskResult& result = outcome_.results[live.task];
    TaskAttempt& attempt = result.attempts.back();
    attempt.ended = now();
    take_exit(tasks_[live.task], end, attempt);
    if (!exit.killed.empty())
      view_.note(cat(printable(tasks_[live.task].name),
                     " left processes behind, which were killed: ",
                     join(exit.killed, ", ")));
    for (const std::string& survivor : exit.survivors)
      view_.note(cat("could not end ", survivor));
    tell_kept(tasks_[live.task], live.where, exit);
    schedule_.release(live.task);
    const bool starved = end.kind == TaskEnd::Kind::starved;
    if (end.kind != TaskEnd::Kind::refused && !starved)
      result.last_json = result_in_log(live.log.get(), attempt.log);
    const AttemptEnd how = judge_end(tasks_[live.task],
                                     end,
                                     {.interrupted = live.interrupted,
                                      .ending = ending_,
                                      .draining = draining_,
                                      .why_ended = why_ended_,
                                      .allow_nan = options_.allow_nan,
                                      .failures = schedule_.failures(live.task)},
                                     result);
    if (!journal_failed_) {
      guarded([&] {
        const uint64_t record =
            journal_.end(tasks_[live.task].name, attempt, how, result.reason, result.last_json);
        pending_.push_back({record, live.task, how, starved});
      });
    }
    if (how == AttemptEnd::refused)
      result.attempts.pop_back();  // the next start is the same attempt
  }

  void tell_kept(const Task& task, const Allocation& where, const PoolExit& exit) {
    if (!exit.unclear.empty())
      view_.note(cat(printable(task.name),
                     ", or a task that still runs, has left ",
                     join(exit.unclear, ", "),
                     " behind; it is ended with the last of them"));
    if (!where.gpus.empty() && !(exit.unclear.empty() && exit.survivors.empty()))
      view_.note(cat("no other task gets what ",
                     printable(task.name),
                     " had of its GPUs until that process has ended"));
  }

  // What is on the disk counts.
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
    const bool failed = end.how == AttemptEnd::failed || end.how == AttemptEnd::again;
    if (end.how == AttemptEnd::done)
      schedule_.done(end.task);
    if (end.how == AttemptEnd::stopped) {
      const TaskAttempt& attempt = result.attempts.back();
      schedule_.stopped(end.task, *attempt.ended - attempt.began, now());
    }
    if (end.starved) {
      schedule_.stopped(end.task, 0, now());  // with a pause: others are to end meanwhile
    } else if (end.how == AttemptEnd::interrupted || end.how == AttemptEnd::refused) {
      schedule_.again(end.task);
    }
    if (end.how == AttemptEnd::refused)
      return view_.refused(end.task, result);
    const std::vector<size_t> skipped =
        failed ? schedule_.failed(end.task, now()).skipped : std::vector<size_t>();
    view_.ended(end.task, result);
    if (!skipped.empty())
      skip(skipped, end.task);
    if (end.how == AttemptEnd::failed && options_.fail_fast && !ending_)
      end_for(cat(printable(tasks_[end.task].name), " failed (--fail-fast)"));
  }

  void skip(const std::vector<size_t>& tasks, size_t because) {
    const std::string reason = cat("after ", printable(tasks_[because].name), ", which failed");
    for (const size_t task : tasks) {
      outcome_.results[task].state = TaskState::skipped;
      outcome_.results[task].reason = reason;
      journal_.skip(tasks_[task].name, reason, now());
    }
    view_.skipped(tasks, reason);
  }

  void take_signals() {
    while (const auto signal = hosts_.take_signal()) {
      if (*signal == SIGINT && !draining_ && !ending_) {
        drain();
        continue;
      }
      outcome_.stopped_by = *signal;
      why_ended_ = cat("ended by ", signal_name(*signal), " to the run");
      const bool insist = ending_;
      view_.note(
          cat(signal_name(*signal), insist ? ": every task is killed" : ": every task is ended"));
      end_all(insist ? kShortGrace : options_.facts.grace);
    }
  }

  void drain() {
    draining_ = true;
    outcome_.stopped_by = SIGINT;
    schedule_.drain();
    const bool one = live_.size() == 1;
    view_.note(cat("SIGINT: muster starts no new task; ",
                   live_.size(),
                   one ? " task keeps" : " tasks keep",
                   " running to ",
                   one ? "its" : "their",
                   " end; a second SIGINT ends ",
                   one ? "it" : "them"));
  }

  void end_for(const std::string& why) {
    why_ended_ = why;
    view_.note(cat(why, "; every task is ended"));
    end_all(options_.facts.grace);
  }

  void end_all(milliseconds grace) {
    ending_ = true;
    schedule_.drain();
    for (auto& [id, live] : live_) {
      live.interrupted = true;
      hosts_.at(live.where.host).end(id, grace);
    }
  }

  void try_lost() {
    if (ending_ || draining_)
      return hosts_.stop_trying();
    guarded([&] { hosts_.try_lost(); });
  }

  // With hosts lost, there may be nothing left that could run what waits, until one is back.
  void watch_lost() {
    if (ending_)
      return;
    const std::vector<std::string> lost = hosts_.lost();
    const bool tries = hosts_.tries_any();
    const milliseconds patience = tries ? options_.wait.value_or(kLostPatience) : milliseconds(0);
    const std::string tasks = plural(schedule_.count(TaskState::waiting), "task");
    if (stuck_.is_there(!lost.empty() && only_waits() && !hosts_.any_held()) &&
        patience > milliseconds(0))
      view_.note(cat(tasks,
                     " can only run on hosts that were lost; one has ",
                     format_duration(patience),
                     " to come back"));
    if (!stuck_.lasts(patience))
      return;
    fail_run(cat("expected hosts that can run the ",
                 tasks,
                 " that wait, got none (",
                 join(lost, "; "),
                 tries ? cat("; did not come back in ", format_duration(patience)) : "",
                 "); --resume goes on, with other --hosts too"));
  }

  // Nothing runs, and nothing will by itself.
  bool only_waits() const {
    return live_.empty() && pending_.empty() && !schedule_.next_time() && !schedule_.finished();
  }

  void fail_run(const std::string& why, const char* next = "") {
    outcome_.error = why;
    view_.note(cat(why, next));
    end_all(options_.facts.grace);
  }

  // The run's own time limit, and GPUs that other jobs do not give back.
  void watch_clock() {
    if (ending_)
      return;
    if (options_.time_limit && Clock::now() - started_ >= *options_.time_limit) {
      outcome_.timed_out = true;
      return end_for(
          cat("the run's time limit of ", format_duration(*options_.time_limit), " was over"));
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

  const std::vector<Task>& tasks_;
  TaskSchedule& schedule_;
  Journal& journal_;
  const RunnerOptions& options_;
  RunView& view_;
  RunHosts hosts_;
  RunOutcome outcome_;
  Clock::time_point started_ = Clock::now();
  std::unordered_map<int, LiveTask> live_;
  std::deque<PendingEnd> pending_;
  int last_id_ = 0;
  bool draining_ = false;
  bool ending_ = false;
  bool journal_failed_ = false;
  std::string why_ended_;
  Standstill stuck_;    // for hosts that were lost
  Standstill held_up_;  // by other jobs
};

}  // namespace

RunOutcome run_tasks(const std::vector<Task>& tasks,
                     TaskSchedule& schedule,
                     Journal& journal,
                     std::vector<TaskResult> results,
                     const RunnerOptions& options,
                     RunView& view) {
  results.resize(tasks.size());
  return TaskRunner(tasks, schedule, journal, std::move(results), options, view).run();
}

}  // namespace muster
