#include "muster/tasks/hosts/local_host.h"

#include <fcntl.h>
#include <signal.h>

#include <string_view>

#include "muster/base/memory_group.h"
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
      foreign_(pool, options_.host, options_.run_id, options_.facts.lease, options_.on_held),
      memory_(pool, options_.host, options_.on_memory),
      no_input_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      oom_kills_(count_oom_kills()) {}

bool LocalHost::reserve(const StartOrder& order) {
  auto leases = foreign_.take(*order.where, *order.task);
  if (!leases) return false;
  if (!leases->empty()) leases_[order.id] = std::move(*leases);
  return true;
}

void LocalHost::start(const StartOrder& order) {
  const Task& task = *order.task;
  const std::string folder = order.log.substr(0, order.log.rfind('/'));
  const std::string base = order.log.substr(0, order.log.size() - std::string_view(".log").size());
  if (task.ranks > 1)
    write_file(base + ".plan.json",
               plan_to_json(plan_of(task, pool_, *order.where, options_.facts.visibility)));
  static const std::vector<Lease> kNoLeases;
  const auto found = leases_.find(order.id);
  const std::vector<Lease>& leases = found == leases_.end() ? kNoLeases : found->second;
  ChildOptions child{.argv = task_argv(task, options_.facts, pool_, base + ".plan.json", folder),
                     .environment = task_environment(task, options_.facts, pool_, *order.where, order.attempt,
                                                     folder, lease_variable(leases)),
                     .working_directory = task.directory,
                     .stdin_fd = no_input_.get(),
                     .stdout_fd = order.log_fd,
                     .stderr_fd = order.log_fd,
                     .inherit_fds = lease_fds(leases),
                     .cpus = order.where->bound};
  processes_.spawn(order.id, task.name, std::move(child));
  if (!order.where->gpus.empty()) gpus_[order.id] = order.where->gpus;
}

std::vector<TaskEnd> LocalHost::wait(std::optional<Clock::time_point> until) {
  std::vector<TaskEnd> ends;
  for (PoolExit& exit : processes_.wait(until)) {
    give_leases_back(exit);
    gpus_.erase(exit.exit.id);
    TaskEnd end{.exit = std::move(exit)};
    if (end.exit.exit.signal == SIGKILL && end.exit.exit.sent_signal == 0) {
      const auto kills = count_oom_kills();
      end.out_of_memory = kills && oom_kills_ && *kills > *oom_kills_;
    }
    ends.push_back(std::move(end));
  }
  return ends;
}

void LocalHost::give_leases_back(const PoolExit& exit) {
  const auto found = leases_.find(exit.exit.id);
  if (found == leases_.end()) return;
  if (exit.survivors.empty()) {
    for (Lease& lease : found->second) lease.end();
  }
  leases_.erase(found);
}

void LocalHost::look_at_memory() {
  std::set<int> taken;
  for (const auto& [id, gpus] : gpus_) taken.insert(gpus.begin(), gpus.end());
  memory_.look(taken);
}

TaskEnd end_without_start(int id, const Error& error) {
  const auto* const spawn = dynamic_cast<const SpawnError*>(&error);
  TaskEnd end{.why_not = error.message()};
  end.exit.exit = {.id = id, .exit_code = spawn != nullptr ? spawn->exit_code() : 1, .at = Clock::now()};
  return end;
}

}  // namespace muster
