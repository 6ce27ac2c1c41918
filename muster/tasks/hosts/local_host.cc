// An order goes through three maps: its leases are in leases_ once it was reserved, in running_
// while it runs, and in kept_ when the task has ended but something that it started may still use
// its GPUs. tell_held tells what of a GPU is not to be had: the sum of what other jobs hold and
// what is kept.
#include "muster/tasks/hosts/local_host.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/memory_group.h"
#include "muster/base/shortage.h"
#include "muster/base/strings.h"
#include "muster/launch/lease_plan.h"
#include "muster/launch/shortage_note.h"
#include "muster/placement/plan_json.h"

namespace muster {

namespace {

constexpr size_t kLongestNote = 4096;

}  // namespace

LocalHost::LocalHost(const DevicePool& pool, LocalHostOptions options)
    : pool_(pool),
      options_(std::move(options)),
      processes_({.mark = cat("MUSTER_MARK=", options_.facts.mark),
                  .child_variable = "MUSTER_TASK",
                  .on_pass = options_.on_pass,
                  .is_foreign = options_.is_foreign}),
      foreign_(pool,
               options_.host,
               options_.run_id,
               options_.facts.lease,
               [this](const auto&... held) { on_held(held...); }),
      memory_(pool, options_.host, options_.on_memory),
      no_input_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      oom_kills_(count_oom_kills()) {}

// Returns false when another job was faster.
bool LocalHost::reserve(const StartOrder& order) {
  auto leases = foreign_.take(*order.where, *order.task);
  if (!leases)
    return false;
  if (!leases->empty())
    leases_[order.id] = std::move(*leases);
  return true;
}

// The leases that `reserve` took for the order; none for a CPU task.
Leases LocalHost::leases_of(int id) {
  auto order = leases_.extract(id);
  return order ? std::move(order.mapped()) : Leases();
}

// The plan, the log and the folder of an attempt lie side by side: their paths follow from the
// log's.
void LocalHost::start(const StartOrder& order) {
  const Task& task = *order.task;
  const auto folder = order.log.substr(0, order.log.rfind('/'));
  const auto base = order.log.substr(0, order.log.size() - std::string_view(".log").size());
  const auto plan_path = base + ".plan.json";
  if (task.ranks > 1)
    write_file(plan_path,
               plan_to_json(plan_of(task, pool_, *order.where, options_.facts.visibility)));
  Running running{.task = task.name,
                  .gpus = order.where->gpus,
                  .units = order.where->units,
                  .leases = leases_of(order.id)};
  ChildOptions child{.argv = task_argv(task, options_.facts, pool_, plan_path, folder),
                     .environment = task_environment(task,
                                                     options_.facts,
                                                     pool_,
                                                     *order.where,
                                                     order.attempt,
                                                     folder,
                                                     lease_variable(running.leases)),
                     .working_directory = task.directory,
                     .stdin_fd = no_input_.get(),
                     .stdout_fd = order.log_fd,
                     .stderr_fd = order.log_fd,
                     .inherit_fds = lease_fds(running.leases)};
  if (!pool_.inventory().simulated)  // else its CPUs are not this machine's
    child.cpus = order.where->bound;
  const auto note = base + ".shortage";
  if (task.ranks > 1) {
    ::unlink(note.c_str());  // of a run that was killed
    child.environment[kShortageNote] = note;
  }
  processes_.spawn(order.id, task.name, std::move(child));
  if (task.ranks > 1)
    notes_[order.id] = note;
  if (!running.gpus.empty())
    running_[order.id] = std::move(running);
}

// Whether the kernel has killed something for want of memory since this began. Who it was is not
// known: a task that was killed with SIGKILL by nobody here may be it.
bool LocalHost::ran_out_of_memory() const {
  const auto kills = count_oom_kills();
  return kills && oom_kills_ && *kills > *oom_kills_;
}

// Leases are given back before the end is told: the next task may want the GPU.
TaskEnds LocalHost::wait(OptionalTime until) {
  TaskEnds ends;
  for (PoolExit& exit : processes_.wait(until)) {
    take_back(exit);
    const bool killed = exit.exit.signal == SIGKILL && exit.exit.sent_signal == 0;
    TaskEnd end{.exit = std::move(exit)};
    end.out_of_memory = killed && ran_out_of_memory();
    take_shortage(end);
    ends.push_back(std::move(end));
  }
  look_at_kept();
  return ends;
}

// A launcher whose ranks found no processes or memory has left a note: the task never began.
void LocalHost::take_shortage(TaskEnd& end) {
  const auto note = notes_.extract(end.exit.exit.id);
  if (!note)
    return;
  auto why = try_read_file(note.mapped(), kLongestNote).value_or("");
  ::unlink(note.mapped().c_str());
  if (why.empty())  // none, or a full disk took none of it
    return;
  end.kind = TaskEnd::Kind::starved;
  end.why_not = std::move(why);
}

// Gives the task's leases back, unless something that it has left may still use its GPUs: then they
// are kept until that has ended.
void LocalHost::take_back(const PoolExit& exit) {
  auto order = running_.extract(exit.exit.id);
  if (!order)
    return;
  Running& had = order.mapped();
  if (exit.alive.empty())
    return end_leases(had);
  Strings processes = exit.survivors;
  append_all(processes, exit.unclear);
  const auto by = cat("held by ",
                      join(processes, ", "),
                      ", which ",
                      printable(had.task),
                      exit.unclear.empty() ? " has left" : " may have left");
  kept_.push_back({.had = std::move(had), .processes = exit.alive, .by = by});
  for (const int gpu : kept_.back().had.gpus)
    tell_held(gpu);
}

void LocalHost::end_leases(Running& had) {
  for (Lease& lease : had.leases)
    lease.end();
}

// Gives back what was kept for processes that have ended by now.
void LocalHost::look_at_kept() {
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    std::erase_if(kept->processes,
                  [](const ProcessId& one) { return !ProcessPool::is_alive(one); });
    if (!kept->processes.empty()) {
      ++kept;
      continue;
    }
    end_leases(kept->had);
    const Ints gpus = std::move(kept->had.gpus);
    kept = kept_.erase(kept);
    for (const int gpu : gpus)
      tell_held(gpu);
  }
}

void LocalHost::on_held(int gpu, int units, const std::string& by) {
  foreign_units_[gpu] = {.units = units, .by = by};
  tell_held(gpu);
}

// Tells what other jobs have of the GPU, and what is kept of it for ended tasks.
void LocalHost::tell_held(int gpu) const {
  int units = 0;
  Strings by;
  if (const Foreign foreign = find_or(foreign_units_, gpu); foreign.units > 0) {
    units += foreign.units;
    by.push_back(foreign.by);
  }
  for (const Kept& kept : kept_) {
    if (contains(kept.had.gpus, gpu)) {
      units += kept.had.units;
      by.push_back(kept.by);
    }
  }
  if (options_.on_held)
    options_.on_held(gpu, std::min(units, kWholeGpu), join(by, " and "));
}

// GPUs that are kept for processes which tasks have left are in the way as other jobs' leases are.
std::string LocalHost::held() const {
  Strings held;
  if (const std::string foreign = foreign_.describe(); !foreign.empty())
    held.push_back(foreign);
  for (const Kept& kept : kept_) {
    for (const int gpu : kept.had.gpus) {
      const PoolGpu& it = pool_.hosts()[options_.host].gpus[gpu];
      held.push_back(cat("GPU ", it.index.value, " is ", kept.by));
    }
  }
  return join(held, ", ");
}

// GPUs with tasks tell nothing of other programs.
void LocalHost::look_at_memory() {
  IntSet taken;
  for (const auto& [id, task] : running_)
    taken.insert(task.gpus.begin(), task.gpus.end());
  memory_.look(taken);
}

// A shortage passes, so that the task is to be tried again; any other error is the task's own.
TaskEnd end_without_start(int id, const Error& error) {
  const auto* const spawn = dynamic_cast<const SpawnError*>(&error);
  const bool starved = dynamic_cast<const Shortage*>(&error) != nullptr;
  TaskEnd end{.kind = starved ? TaskEnd::Kind::starved : TaskEnd::Kind::ended,
              .why_not = error.message()};
  end.exit.exit = {
      .id = id, .exit_code = spawn != nullptr ? spawn->exit_code() : 1, .at = Clock::now()};
  return end;
}

}  // namespace muster
