#include "muster/tasks/hosts/task_process.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "muster/base/rank_env_table.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

const PoolHost& host_of(const Pool& pool, const Allocation& where) {
  return pool.hosts()[where.host];
}

bool has_vendor(const Host& host, Vendor vendor) {
  return std::ranges::any_of(host.gpus, [&](const Gpu& gpu) { return gpu.vendor == vendor; });
}

DeviceAssignment device_of(const Pool& pool, const Allocation& where, size_t place) {
  const PoolGpu& gpu = host_of(pool, where).gpus[where.gpus[place]];
  const Gpu& real = pool.inventory().hosts[where.host].gpus[gpu.device.position];
  return {.kind = DeviceAssignment::Kind::cuda,
          .vendor = real.vendor,
          .uuid = gpu.uuid,
          .index = gpu.index,
          .pci = real.pci,
          .model = gpu.model,
          .ordinal = {static_cast<int>(place)}};
}

// The variables that show a task its own GPUs and no others: of a CPU task none of those that there
// are. The launcher shows ranks theirs, but with Visibility::all, where they see what it does.
void show_gpus(const Task& task,
               Visibility visibility,
               const Pool& pool,
               const Allocation& where,
               Environment& variables) {
  const Host& host = pool.inventory().hosts[where.host];
  if (pool.inventory().simulated)
    return;
  if (where.gpus.empty()) {
    if (has_vendor(host, Vendor::nvidia))
      variables["CUDA_VISIBLE_DEVICES"] = "";
    if (has_vendor(host, Vendor::amd))
      variables["ROCR_VISIBLE_DEVICES"] = "";
    return;
  }
  variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  if (task.ranks > 1 && visibility != Visibility::all)
    return;
  Task alone = task;
  alone.ranks = 1;
  Plan plan = plan_of(alone, pool, where);
  plan.visibility = Visibility::job;  // all of them, MIG instances too: there is nobody else
  for (const auto& [name, value] : visibility_variables(plan, plan.ranks[0])) {
    if (value) {
      variables[name] = *value;
    } else {
      variables.erase(name);
    }
  }
}

// A program that starts its own ranks finds its GPUs in the file, as it would find real ones by the
// variables above.
void tell_simulated(const Pool& pool, const TaskAttempt& attempt, Environment& variables) {
  variables["MUSTER_SIMULATED"] = "1";
  if (attempt.devices.empty())
    return;
  variables.emplace("MUSTER_INVENTORY", pool.inventory().source);
  variables.emplace("MUSTER_GPUS", cat(attempt.host, ":", join(attempt.devices, ",")));
}

std::string devices_text(const TaskAttempt& attempt) {
  return attempt.devices.empty() ? cat("cpu:", attempt.cpus.empty() ? 0 : attempt.cpus[0])
                                 : join(attempt.devices, ",");
}

}  // namespace

// Where the host is simulated they are this machine's.
int threads_of(const Pool& pool, const Allocation& where) {
  const PoolHost& host = host_of(pool, where);
  int cpus = host.cpus;
  if (pool.inventory().simulated)
    cpus = std::min(cpus, static_cast<int>(std::thread::hardware_concurrency()));
  if (where.cpus > 0)
    return std::min(where.cpus, std::max(1, cpus));
  const auto gpus = std::max<size_t>(1, host.gpus.size());
  return std::max(1, static_cast<int>(static_cast<size_t>(cpus) * where.gpus.size() / gpus));
}

TaskAttempt attempt_of(const Pool& pool, const Allocation& where, int number) {
  const PoolHost& host = host_of(pool, where);
  TaskAttempt attempt{.attempt = number, .host = host.name};
  for (const int at : where.gpus) {
    const PoolGpu& gpu = host.gpus[at];
    attempt.devices.push_back(gpu.uuid.value);
    attempt.gpu_indices.push_back(gpu.index.value);
  }
  attempt.gpu_fraction = static_cast<double>(where.units) / kWholeGpu;
  attempt.cpus = where.bound;
  return attempt;
}

std::vector<LeaseWish> lease_wishes_of(const Pool& pool, const Allocation& where) {
  std::vector<LeaseWish> wishes;
  if (pool.inventory().simulated)
    return wishes;
  for (const int at : where.gpus)
    wishes.push_back({host_of(pool, where).gpus[at].uuid, where.units});
  return wishes;
}

Plan plan_of(const Task& task, const Pool& pool, const Allocation& where, Visibility visibility) {
  const PoolHost& host = host_of(pool, where);
  const size_t devices = where.gpus.size();
  const size_t num_ranks =
      task.ranks > 1 ? static_cast<size_t>(task.ranks) : std::max<size_t>(1, devices);
  const size_t each = std::max<size_t>(1, devices / num_ranks);
  Plan plan{.policy = "task", .visibility = visibility, .simulated = pool.inventory().simulated};
  const bool any_mig =
      std::ranges::any_of(where.gpus, [&](int gpu) { return host.gpus[gpu].device.mig >= 0; });
  if (devices > 0 && (devices < num_ranks || (any_mig && num_ranks > 1)))
    plan.visibility = Visibility::own;
  const bool own_first =
      plan.visibility == Visibility::own || plan.visibility == Visibility::own_first;
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    RankPlan it{.rank = static_cast<int>(rank),
                .local_rank = static_cast<int>(rank),
                .host = host.name,
                .reason = cat("task: ", printable(task.name))};
    if (devices == 0) {
      it.device.cpu_slot = static_cast<int>(rank);
    } else {
      const size_t place = rank * each % devices;
      for (size_t more = 0; more < each; ++more) {
        DeviceAssignment device = device_of(pool, where, place + more);
        if (own_first)
          device.ordinal = {static_cast<int>(more)};
        if (more == 0) {
          it.device = std::move(device);
        } else {
          it.more_devices.push_back(std::move(device));
        }
      }
      it.numa_node = host.gpus[where.gpus[place]].numa_node;
    }
    plan.ranks.push_back(std::move(it));
  }
  return plan;
}

Environment task_environment(const Task& task,
                             const TaskRunFacts& run,
                             const Pool& pool,
                             const Allocation& where,
                             int attempt,
                             const std::string& task_dir,
                             const std::string& leases) {
  Environment variables = run.environment;
  erase_outer_task(variables);
  for (const auto& [name, value] : task.environment)
    variables[name] = value;
  const int threads = threads_of(pool, where) / std::max(1, task.ranks);
  variables.emplace("OMP_NUM_THREADS", cat(std::max(1, threads)));
  variables["MUSTER_MARK"] = run.mark;
  variables["MUSTER_TASK"] = task.name;
  variables["MUSTER_ATTEMPT"] = cat(attempt);
  variables["MUSTER_RUN_DIR"] = run.run_dir;
  variables["MUSTER_TASK_DIR"] = task_dir;
  const TaskAttempt devices = attempt_of(pool, where, attempt);
  variables["MUSTER_DEVICE"] = devices_text(devices);
  variables.emplace("MUSTER_CPU_SLOTS",
                    "1");  // of a program that starts its own ranks, where it finds no GPU
  if (pool.inventory().simulated)
    tell_simulated(pool, devices, variables);
  if (!leases.empty())
    variables[kLeaseVariable] = leases;
  show_gpus(task, run.visibility, pool, where, variables);
  return variables;
}

namespace {

// A Python script is run as `muster run` does it, whether it can be executed itself or not.
std::vector<std::string> command_of_task(const Task& task, const TaskRunFacts& run) {
  const std::string& program = task.argv.at(0);
  if (!program.ends_with(".py"))
    return task.argv;
  const std::string path = program.starts_with('/') || task.directory.empty()
                               ? program
                               : cat(task.directory, "/", program);
  if (::access(path.c_str(), R_OK) != 0)
    return task.argv;  // a program of PATH, or none
  const auto python = run.environment.find("PYTHON_EXEC");
  std::vector<std::string> command = {python == run.environment.end() ? "python3" : python->second,
                                      "-u"};
  command.insert(command.end(), task.argv.begin(), task.argv.end());
  return command;
}

}  // namespace

std::vector<std::string> task_argv(const Task& task,
                                   const TaskRunFacts& run,
                                   const Pool& pool,
                                   const std::string& plan_path,
                                   const std::string& task_dir) {
  const std::vector<std::string> command = command_of_task(task, run);
  if (task.ranks <= 1)
    return command;
  std::vector<std::string> argv = {run.launcher,
                                   "run",
                                   "--quiet",
                                   "--plan",
                                   plan_path,
                                   "--run-dir",
                                   task_dir,
                                   "--shutdown-timeout",
                                   cat(run.grace.count(), "ms")};
  if (!run.lease || pool.inventory().simulated)
    argv.emplace_back("--no-lease");
  argv.emplace_back("--no-python");
  argv.emplace_back("--");
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

}  // namespace muster
