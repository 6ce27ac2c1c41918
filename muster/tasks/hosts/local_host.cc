#include "muster/tasks/hosts/local_host.h"

#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "muster/base/memory_group.h"
#include "muster/base/shortage.h"
#include "muster/base/strings.h"
#include "muster/launch/lease_plan.h"
#include "muster/placement/plan_json.h"

namespace muster {

LocalHost::LocalHost(const Pool& pool, LocalHostOptions options)
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
               [this](int gpu, int units, const std::string& by) { on_held(gpu, units, by); }),
      memory_(pool, options_.host, options_.on_memory),
      no_input_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      oom_kills_(count_oom_kills()) {}

bool LocalHost::reserve(const StartOrder& order) {
  auto leases = foreign_.take(*order.where, *order.task);
  if (!leases)
    return false;
  if (!leases->empty())
    leases_[order.id] = std::move(*leases);
  return true;
}

void LocalHost::start(const StartOrder& order) {
  const Task& task = *order.task;
  const std::string folder = order.log.substr(0, order.log.rfind('/'));
  const std::string base = order.log.substr(0, order.log.size() - std::string_view(".log").size());
  if (task.ranks > 1)
    write_file(base + ".plan.json",
               plan_to_json(plan_of(task, pool_, *order.where, options_.facts.visibility)));
  Running running{.task = task.name, .gpus = order.where->gpus, .units = order.where->units};
  if (const auto found = leases_.find(order.id); found != leases_.end()) {
    running.leases = std::move(found->second);
    leases_.erase(found);
  }
  const bool simulated = pool_.inventory().simulated;  // then its CPUs are not this machine's
  ChildOptions child{.argv = task_argv(task, options_.facts, pool_, base + ".plan.json", folder),
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
                     .inherit_fds = lease_fds(running.leases),
                     .cpus = simulated ? std::vector<int>() : order.where->bound};
  processes_.spawn(order.id, task.name, std::move(child));
  if (!running.gpus.empty())
    running_[order.id] = std::move(running);
}

std::vector<TaskEnd> LocalHost::wait(std::optional<Clock::time_point> until) {
  std::vector<TaskEnd> ends;
  for (PoolExit& exit : processes_.wait(until)) {
    take_back(exit);
    TaskEnd end{.exit = std::move(exit)};
    if (end.exit.exit.signal == SIGKILL && end.exit.exit.sent_signal == 0) {
      const auto kills = count_oom_kills();
      end.out_of_memory = kills && oom_kills_ && *kills > *oom_kills_;
    }
    ends.push_back(std::move(end));
  }
  look_at_kept();
  return ends;
}

// What may still be used by something that the task has left is nobody else's.
void LocalHost::take_back(const PoolExit& exit) {
  const auto found = running_.find(exit.exit.id);
  if (found == running_.end())
    return;
  Running had = std::move(found->second);
  running_.erase(found);
  if (exit.alive.empty()) {
    for (Lease& lease : had.leases)
      lease.end();
    return;
  }
  std::vector<std::string> processes = exit.survivors;
  processes.insert(processes.end(), exit.unclear.begin(), exit.unclear.end());
  const std::string by = cat("held by ",
                             join(processes, ", "),
                             ", which ",
                             printable(had.task),
                             exit.unclear.empty() ? " has left" : " may have left");
  kept_.push_back({.had = std::move(had), .processes = exit.alive, .by = by});
  for (const int gpu : kept_.back().had.gpus)
    tell_held(gpu);
}

void LocalHost::look_at_kept() {
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    std::erase_if(kept->processes,
                  [](const ProcessId& one) { return !ProcessPool::is_alive(one); });
    if (!kept->processes.empty()) {
      ++kept;
      continue;
    }
    for (Lease& lease : kept->had.leases)
      lease.end();
    const std::vector<int> gpus = std::move(kept->had.gpus);
    kept = kept_.erase(kept);
    for (const int gpu : gpus)
      tell_held(gpu);
  }
}

void LocalHost::on_held(int gpu, int units, const std::string& by) {
  foreign_units_[gpu] = {.units = units, .by = by};
  tell_held(gpu);
}

// What other jobs have of the GPU, and what ended tasks have left there.
void LocalHost::tell_held(int gpu) const {
  int units = 0;
  std::vector<std::string> by;
  if (const auto found = foreign_units_.find(gpu);
      found != foreign_units_.end() && found->second.units > 0) {
    units += found->second.units;
    by.push_back(found->second.by);
  }
  for (const Kept& kept : kept_) {
    if (std::ranges::count(kept.had.gpus, gpu) == 0)
      continue;
    units += kept.had.units;
    by.push_back(kept.by);
  }
  if (options_.on_held)
    options_.on_held(gpu, std::min(units, kWholeGpu), join(by, " and "));
}

std::string LocalHost::held() const {
  std::vector<std::string> held;
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

void LocalHost::look_at_memory() {
  std::set<int> taken;
  for (const auto& [id, task] : running_)
    taken.insert(task.gpus.begin(), task.gpus.end());
  memory_.look(taken);
}

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
