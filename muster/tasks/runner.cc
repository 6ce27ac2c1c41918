#include "muster/tasks/runner.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "muster/base/env.h"
#include "muster/base/log.h"
#include "muster/base/memory_group.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/launch/lease_plan.h"
#include "muster/placement/plan_json.h"
#include "muster/supervise/process_pool.h"
#include "muster/tasks/foreign_leases.h"
#include "muster/tasks/last_json_line.h"
#include "muster/tasks/task_log.h"

namespace muster {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTickEvery{200};
constexpr milliseconds kShortGrace{0};

// A task that runs.
struct LiveTask {
  size_t task = 0;
  Allocation where = {};
  Fd log = {};
  std::vector<Lease> leases = {};
  EventLoop::Handle time_limit = 0;
  bool interrupted = false;  // asked to end by the run
  std::optional<PoolExit> never_began = {};
  std::string why_not = {};
};

// An end whose record is on its way to the disk.
struct PendingEnd {
  uint64_t record = 0;
  size_t task = 0;
  AttemptEnd how = AttemptEnd::done;
};

class TaskRunner {
 public:
  TaskRunner(const std::vector<Task>& tasks, Schedule& schedule, Journal& journal,
             std::vector<TaskResult> results, const RunnerOptions& options, RunView& view)
      : tasks_(tasks),
        schedule_(schedule),
        journal_(journal),
        options_(options),
        view_(view),
        processes_({.mark = cat("MUSTER_AGENT=", options.facts.agent), .child_variable = "MUSTER_TASK"}),
        foreign_(schedule, options.run_id, options.facts.lease) {
    outcome_.results = std::move(results);
    processes_.loop().watch_readable(journal.fd(), [this] { journal_.take_notice(); });
  }

  RunOutcome run() {
    oom_kills_ = count_oom_kills();
    foreign_.look(view_);
    while (!finished()) {
      guarded([&] { start_tasks(); });
      view_.tick(schedule_, now());
      for (PoolExit& exit : processes_.wait(wait_until())) on_exit(exit);
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
  double now() const { return options_.began + seconds_since(started_); }

  bool finished() const { return live_.empty() && pending_.empty() && (ending_ || schedule_.finished()); }

  // The journal is what the run stands on: without it nothing more is started, and what runs is ended.
  template <class Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      if (journal_failed_) return;
      journal_failed_ = true;
      pending_.clear();
      outcome_.error = error.message();
      view_.note(cat(error.message(), "; every task is ended, and --resume goes on when that is mended"));
      end_all(options_.facts.grace);
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
    while (!ending_) {
      bool refused = false;
      for (TaskStart& start : schedule_.start(now())) refused |= !prepare(start, fresh);
      if (!refused) break;  // else others may go where they can be had
    }
    journal_.write();  // before anything runs
    for (const int id : fresh) spawn(id);
    if (live_.empty() && !pending_.empty()) journal_.hurry();
  }

  // Takes the leases and writes the record. False when another job has a GPU of it.
  bool prepare(TaskStart& start, std::vector<int>& fresh) {
    LiveTask live{.task = start.task, .where = std::move(start.where)};
    auto leases = foreign_.take(live.where, tasks_[start.task]);
    if (!leases) {
      schedule_.again(start.task);
      return false;
    }
    live.leases = std::move(*leases);
    TaskResult& result = outcome_.results[start.task];
    const int number = result.attempts.empty() ? 0 : result.attempts.back().attempt + 1;
    TaskAttempt attempt = attempt_of(schedule_.pool(), live.where, number);
    attempt.began = now();
    attempt.log =
        cat(log_folder_of(options_.facts.run_dir, tasks_[start.task].name, start.task), "/", number, ".log");
    result.state = TaskState::running;
    result.reason.clear();
    journal_.start(tasks_[start.task].name, attempt, {live.where.memory_bytes, live.where.cpus});
    result.attempts.push_back(std::move(attempt));
    const int id = ++last_id_;
    live_.emplace(id, std::move(live));
    fresh.push_back(id);
    return true;
  }

  void spawn(int id) {
    LiveTask& live = live_.at(id);
    const Task& task = tasks_[live.task];
    const TaskAttempt& attempt = outcome_.results[live.task].attempts.back();
    try {
      live.log = open_task_log(attempt.log);
      const std::string base = attempt.log.substr(0, attempt.log.size() - std::string_view(".log").size());
      if (task.ranks > 1)
        write_file(base + ".plan.json", plan_to_json(plan_of(task, schedule_.pool(), live.where)));
      ChildOptions child{
          .argv = task_argv(task, options_.facts, schedule_.pool(), base + ".plan.json", base + ".job"),
          .environment = task_environment(task, options_.facts, schedule_.pool(), live.where, attempt.attempt,
                                          lease_variable(live.leases)),
          .working_directory = task.directory,
          .stdin_fd = no_input_.get(),
          .stdout_fd = live.log.get(),
          .stderr_fd = live.log.get(),
          .inherit_fds = lease_fds(live.leases),
          .cpus = live.where.bound};
      processes_.spawn(id, task.name, std::move(child));
    } catch (const Error& error) {
      fail_to_start(id, error);
      return;
    }
    view_.started(live.task, attempt);
    if (!task.time_limit) return;
    live.time_limit = processes_.loop().call_at(Clock::now() + *task.time_limit, [this, id] {
      LiveTask& late = live_.at(id);
      late.time_limit = 0;
      outcome_.results[late.task].attempts.back().timed_out = true;
      processes_.end(id, options_.facts.grace);
    });
  }

  void fail_to_start(int id, const Error& error) {
    const auto* const spawn = dynamic_cast<const SpawnError*>(&error);
    live_.at(id).why_not = error.message();
    PoolExit exit;
    exit.exit = {.id = id, .exit_code = spawn != nullptr ? spawn->exit_code() : 1, .at = Clock::now()};
    on_exit(exit);
  }

  void on_exit(const PoolExit& exit) {
    const auto found = live_.find(exit.exit.id);
    LiveTask live = std::move(found->second);
    live_.erase(found);
    processes_.loop().cancel(live.time_limit);
    TaskResult& result = outcome_.results[live.task];
    TaskAttempt& attempt = result.attempts.back();
    attempt.ended = now();
    attempt.exit_code = exit.exit.exit_code;
    attempt.signal = exit.exit.signal;
    if (!exit.killed.empty())
      view_.note(
          cat(printable(tasks_[live.task].name), " left behind and was rid of: ", join(exit.killed, ", ")));
    for (const std::string& survivor : exit.survivors) view_.note(cat("could not end ", survivor));
    schedule_.release(live.task);
    live.leases.clear();
    result.last_json = is_empty_log(live.log.get()) ? std::string() : json_of(attempt.log);
    const AttemptEnd how = judge(live, exit, result);
    if (journal_failed_) return;
    guarded([&] {
      const uint64_t record =
          journal_.end(tasks_[live.task].name, attempt, how, result.reason, result.last_json);
      pending_.push_back({record, live.task, how});
    });
  }

  // Nothing where the task took its log away.
  static std::string json_of(const std::string& log) {
    try {
      return last_json_line(log);
    } catch (const Error&) {
      return {};
    }
  }

  // What the end means, in the result's words too.
  AttemptEnd judge(const LiveTask& live, const PoolExit& exit, TaskResult& result) {
    const TaskAttempt& attempt = result.attempts.back();
    if (!exit.exit.failed() && !attempt.timed_out) {
      result.state = TaskState::done;
      result.reason.clear();
      return AttemptEnd::done;
    }
    if (live.interrupted && !attempt.timed_out) {
      result.state = TaskState::skipped;
      result.reason = why_ended_;
      return AttemptEnd::interrupted;
    }
    result.reason = reason_of(live, exit, attempt);
    const bool again = schedule_.failures(live.task) < tasks_[live.task].retries && !ending_;
    result.state = again ? TaskState::waiting : TaskState::failed;
    return again ? AttemptEnd::again : AttemptEnd::failed;
  }

  std::string reason_of(const LiveTask& live, const PoolExit& exit, const TaskAttempt& attempt) const {
    if (!live.why_not.empty()) return live.why_not;
    if (attempt.timed_out)
      return cat("its time limit of ", format_duration(*tasks_[live.task].time_limit), " is over");
    if (attempt.signal == 0) return cat("exit code ", attempt.exit_code);
    const auto kills = count_oom_kills();
    const bool oom = attempt.signal == SIGKILL && exit.exit.sent_signal == 0 && kills && oom_kills_ &&
                     *kills > *oom_kills_;
    return cat("killed by ", signal_name(attempt.signal), oom ? ": out of memory, it seems" : "",
               exit.exit.core_dumped ? ", core dumped" : "");
  }

  // What is on the disk counts.
  void settle() {
    const uint64_t on_disk = pending_.empty() ? 0 : journal_.on_disk();
    while (!pending_.empty() && pending_.front().record <= on_disk) {
      const PendingEnd end = pending_.front();
      pending_.pop_front();
      const TaskResult& result = outcome_.results[end.task];
      if (end.how == AttemptEnd::done) schedule_.done(end.task);
      if (end.how == AttemptEnd::interrupted) schedule_.again(end.task);
      std::vector<size_t> skipped;
      if (end.how == AttemptEnd::failed || end.how == AttemptEnd::again)
        skipped = schedule_.failed(end.task, now()).skipped;
      view_.ended(end.task, result);
      for (const size_t task : skipped) skip(task, end.task);
      if (end.how == AttemptEnd::failed && options_.fail_fast && !ending_) {
        why_ended_ = cat(printable(tasks_[end.task].name), " failed (--fail-fast)");
        view_.note(cat(why_ended_, "; the run is ended"));
        end_all(options_.facts.grace);
      }
    }
  }

  void skip(size_t task, size_t because) {
    TaskResult& result = outcome_.results[task];
    result.state = TaskState::skipped;
    result.reason = cat("after ", printable(tasks_[because].name), ", which failed");
    journal_.skip(tasks_[task].name, result.reason, now());
    view_.skipped(task, result);
  }

  void take_signals() {
    while (const auto signal = processes_.take_signal()) {
      if (*signal == SIGINT && !draining_ && !ending_) {
        drain();
        continue;
      }
      outcome_.stopped_by = *signal;
      why_ended_ = cat("ended by ", signal_name(*signal), " to the run");
      const bool insist = ending_;
      view_.note(cat(signal_name(*signal), insist ? ": every task is killed" : ": every task is ended"));
      end_all(insist ? kShortGrace : options_.facts.grace);
    }
  }

  void drain() {
    draining_ = true;
    outcome_.stopped_by = SIGINT;
    schedule_.drain();
    view_.note(cat("SIGINT: nothing new is started, ", live_.size(),
                   live_.size() == 1 ? " task goes" : " tasks go", " on to the end; again, and ",
                   live_.size() == 1 ? "it is" : "they are", " ended"));
  }

  void end_all(milliseconds grace) {
    ending_ = true;
    schedule_.drain();
    for (auto& [id, live] : live_) {
      live.interrupted = true;
      processes_.end(id, grace);
    }
  }

  // The run's own time limit, and GPUs that other jobs do not give back.
  void watch_clock() {
    if (ending_) return;
    if (options_.time_limit && Clock::now() - started_ >= *options_.time_limit) {
      outcome_.timed_out = true;
      why_ended_ = cat("the run's time limit of ", format_duration(*options_.time_limit), " was over");
      view_.note(why_ended_ + "; every task is ended");
      return end_all(options_.facts.grace);
    }
    foreign_.look(view_);
    if (!live_.empty() || !pending_.empty() || schedule_.next_time() || !foreign_.any()) {
      waits_since_.reset();
    } else if (!waits_since_) {
      waits_since_ = Clock::now();
    } else if (options_.wait && Clock::now() - *waits_since_ >= *options_.wait) {
      outcome_.error = cat("expected other jobs' GPUs to become free, got none in ",
                           format_duration(*options_.wait), " (", foreign_.describe(), ")");
      view_.note(outcome_.error);
      end_all(options_.facts.grace);
    }
  }

  const std::vector<Task>& tasks_;
  Schedule& schedule_;
  Journal& journal_;
  const RunnerOptions& options_;
  RunView& view_;
  ProcessPool processes_;
  ForeignLeases foreign_;
  const Fd no_input_{::open("/dev/null", O_RDONLY | O_CLOEXEC)};  // every task's standard input
  RunOutcome outcome_;
  Clock::time_point started_ = Clock::now();
  std::unordered_map<int, LiveTask> live_;
  std::deque<PendingEnd> pending_;
  int last_id_ = 0;
  bool draining_ = false;
  bool ending_ = false;
  bool journal_failed_ = false;
  std::string why_ended_;
  std::optional<int64_t> oom_kills_;
  std::optional<Clock::time_point> waits_since_;
};

}  // namespace

std::string log_folder_of(const std::string& run_dir, const std::string& task, size_t place) {
  std::string name = task;
  std::replace(name.begin(), name.end(), '/', '_');
  // Names that would be the same folder, or none, are told apart by their place.
  if (name != task || name.empty() || name.starts_with('.') || name.size() > 200)
    name = cat(name.substr(0, 200), "~", place);
  if (name.starts_with('.')) name.insert(0, "_");
  return cat(run_dir, "/logs/", name);
}

RunOutcome run_tasks(const std::vector<Task>& tasks, Schedule& schedule, Journal& journal,
                     std::vector<TaskResult> results, const RunnerOptions& options, RunView& view) {
  results.resize(tasks.size());
  return TaskRunner(tasks, schedule, journal, std::move(results), options, view).run();
}

}  // namespace muster
