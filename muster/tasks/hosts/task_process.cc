// A task finds its devices by the variables that every GPU library knows, as if it had the machine
// to itself. A task of several ranks is a job of its own: it is started through the launcher, with
// a plan that says which rank has which of the task's devices.
#include "muster/tasks/hosts/task_process.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/rank_env_table.h"
#include "muster/launch/rank_spec.h"

namespace muster {

namespace {

const PoolHost& host_of(const DevicePool& pool, const Allocation& where) {
  return pool.hosts()[where.host];
}

// The allocation's GPU at `place`, as a plan has it. `ordinal`: its number among the GPUs that the
// rank sees.
DeviceAssignment device_of(const DevicePool& pool,
                           const Allocation& where,
                           int place,
                           int ordinal) {
  const PoolGpu& gpu = host_of(pool, where).gpus[where.gpus[place]];
  const Gpu& real = pool.inventory().hosts[where.host].gpus[gpu.device.position];
  return {.kind = DeviceAssignment::Kind::gpu,
          .vendor = real.vendor,
          .uuid = gpu.uuid,
          .index = gpu.index,
          .pci = real.pci,
          .model = gpu.model,
          .ordinal = {ordinal}};
}

// Hides all GPUs that there are from a CPU task.
void hide_gpus(const Host& host, Environment& variables) {
  if (contains(host.gpus, Vendor::nvidia, &Gpu::vendor))
    variables["CUDA_VISIBLE_DEVICES"] = "";
  if (contains(host.gpus, Vendor::amd, &Gpu::vendor))
    variables["ROCR_VISIBLE_DEVICES"] = "";
}

// Sets the variables that show a task its own GPUs and no others. The launcher shows ranks theirs,
// but with Visibility::all, where they see what it does.
void show_gpus(const Task& task,
               Visibility visibility,
               const DevicePool& pool,
               const Allocation& where,
               Environment& variables) {
  if (pool.inventory().simulated)
    return;
  if (where.gpus.empty())
    return hide_gpus(pool.inventory().hosts[where.host], variables);
  variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  if (task.ranks > 1 && visibility != Visibility::all)
    return;
  Task alone = task;
  alone.ranks = 1;
  Plan plan = plan_of(alone, pool, where);
  plan.visibility = Visibility::job;  // all of them, MIG instances too: there is nobody else
  show_devices(plan, plan.ranks[0], variables);
}

// A program that starts its own ranks finds its GPUs in the inventory's file, as it would find real
// ones by the variables above.
void tell_simulated(const DevicePool& pool, const TaskAttempt& attempt, Environment& variables) {
  variables["MUSTER_SIMULATED"] = "1";
  if (attempt.devices.empty())
    return;
  variables.emplace("MUSTER_INVENTORY", pool.inventory().source);
  variables.emplace("MUSTER_GPUS", cat(attempt.host, ":", join(attempt.devices, ",")));
}

// MUSTER_DEVICE of the task: its GPUs, or "cpu:" and its first CPU.
std::string device_variable(const TaskAttempt& attempt) {
  if (!attempt.devices.empty())
    return join(attempt.devices, ",");
  return cat("cpu:", attempt.cpus.empty() ? 0 : attempt.cpus[0]);
}

// MIG instances of a job, and GPUs that several ranks share, can only be seen by their own ranks.
Visibility visibility_of(const DevicePool& pool,
                         const Allocation& where,
                         int num_ranks,
                         Visibility wanted) {
  if (where.gpus.empty())
    return wanted;
  const PoolGpus& gpus = host_of(pool, where).gpus;
  const bool any_mig = any_of(where.gpus, [&](int gpu) { return gpus[gpu].device.is_instance(); });
  const bool shared = std::ssize(where.gpus) < num_ranks;
  return shared || (any_mig && num_ranks > 1) ? Visibility::own : wanted;
}

}  // namespace

// A simulated host's threads run on this machine's CPUs. Without a number of CPUs of its own a task
// gets the share of its GPUs.
int threads_of(const DevicePool& pool, const Allocation& where) {
  const PoolHost& host = host_of(pool, where);
  int cpus = host.cpus;
  if (pool.inventory().simulated)
    cpus = std::min(cpus, static_cast<int>(std::thread::hardware_concurrency()));
  if (where.cpus > 0)
    return std::min(where.cpus, std::max(1, cpus));
  const int64_t num_gpus = std::max<int64_t>(1, std::ssize(host.gpus));
  return std::max(1, static_cast<int>(cpus * std::ssize(where.gpus) / num_gpus));
}

// The CPUs are those that the task is bound to, and not those that it only counts.
TaskAttempt attempt_of(const DevicePool& pool, const Allocation& where, int number) {
  const PoolHost& host = host_of(pool, where);
  TaskAttempt attempt{.attempt = number, .host = host.name};
  for (const int at : where.gpus) {
    const PoolGpu& gpu = host.gpus[at];
    attempt.devices.push_back(gpu.uuid.value);
    attempt.gpu_indices.push_back(gpu.index.value);
  }
  attempt.gpu_fraction = 1.0 * where.units / kWholeGpu;
  attempt.cpus = where.bound;
  return attempt;
}

// A simulated GPU is nobody's.
LeaseWishes lease_wishes_of(const DevicePool& pool, const Allocation& where) {
  LeaseWishes wishes;
  if (pool.inventory().simulated)
    return wishes;
  for (const int at : where.gpus)
    wishes.push_back({host_of(pool, where).gpus[at].uuid, where.units});
  return wishes;
}

// The devices are dealt out in their order, so that neighbours on the links are neighbours among
// the ranks.
Plan plan_of(const Task& task,
             const DevicePool& pool,
             const Allocation& where,
             Visibility visibility) {
  const PoolHost& host = host_of(pool, where);
  const int num_devices = static_cast<int>(where.gpus.size());
  const int num_ranks = task.ranks > 1 ? task.ranks : std::max(1, num_devices);
  const int each = std::max(1, num_devices / num_ranks);
  Plan plan{.policy = "task",
            .visibility = visibility_of(pool, where, num_ranks, visibility),
            .simulated = pool.inventory().simulated};
  const bool own_first = is_one_of(plan.visibility, Visibility::own, Visibility::own_first);
  for (int rank = 0; rank < num_ranks; ++rank) {
    RankPlan it{.rank = rank,
                .local_rank = rank,
                .host = host.name,
                .reason = cat("task: ", printable(task.name))};
    if (num_devices == 0) {
      it.device.cpu_slot = rank;
      plan.ranks.push_back(std::move(it));
      continue;
    }
    const int first = rank * each % num_devices;
    it.numa_node = host.gpus[where.gpus[first]].numa_node;
    it.device = device_of(pool, where, first, own_first ? 0 : first);
    for (int more = 1; more < each; ++more) {
      const int place = first + more;
      it.more_devices.push_back(device_of(pool, where, place, own_first ? more : place));
    }
    plan.ranks.push_back(std::move(it));
  }
  return plan;
}

// emplace leaves what the task or the runner has set; an assignment replaces it.
Environment task_environment(const Task& task,
                             const TaskRunFacts& run,
                             const DevicePool& pool,
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
  variables["MUSTER_DEVICE"] = device_variable(devices);
  // A program that starts its own ranks and finds no GPU starts one rank.
  variables.emplace("MUSTER_CPU_SLOTS", "1");
  if (pool.inventory().simulated)
    tell_simulated(pool, devices, variables);
  if (!leases.empty())
    variables[kLeaseVariable] = leases;
  show_gpus(task, run.visibility, pool, where, variables);
  return variables;
}

namespace {

// The task's command. A Python script is run as `muster run` does it, whether it can be executed
// itself or not.
Strings command_of_task(const Task& task, const TaskRunFacts& run) {
  const auto& program = task.argv.at(0);
  if (!program.ends_with(".py"))
    return task.argv;
  const bool is_in_folder = !program.starts_with('/') && !task.directory.empty();
  const auto path = is_in_folder ? cat(task.directory, "/", program) : program;
  if (::access(path.c_str(), R_OK) != 0)
    return task.argv;  // a program of PATH, or none
  Strings command = {find_or(run.environment, "PYTHON_EXEC", "python3"), "-u"};
  append_all(command, task.argv);
  return command;
}

}  // namespace

Strings task_argv(const Task& task,
                  const TaskRunFacts& run,
                  const DevicePool& pool,
                  const std::string& plan_path,
                  const std::string& task_dir) {
  const Strings command = command_of_task(task, run);
  if (task.ranks <= 1)
    return command;
  Strings argv = {run.launcher,
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
  append_all(argv, command);
  return argv;
}

}  // namespace muster
