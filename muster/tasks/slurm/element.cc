// An element's file has a line of JSON for each index, and reading it counts lines. A task is
// placed on what Slurm has given it as a run of its own would place it; one that an older muster
// submitted has no needs in its line, and runs as it is.
#include "muster/tasks/slurm/element.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

#include "muster/base/env_count.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/own_program.h"
#include "muster/base/units.h"
#include "muster/device/probe.h"
#include "muster/placement/plan_json.h"
#include "muster/supervise/child.h"
#include "muster/supervise/program_file.h"
#include "muster/tasks/hosts/task_log.h"
#include "muster/tasks/hosts/task_process.h"

namespace muster {

// JSON must be UTF-8, which a task's texts need not be.
std::string element_line(const Task& task, const std::string& run_dir, Visibility visibility) {
  const TaskNeed& need = task.needs.front();
  const nlohmann::ordered_json json = {{"name", task.name},
                                       {"argv", task.argv},
                                       {"environment", task.environment},
                                       {"directory", task.directory},
                                       {"run_dir", run_dir},
                                       {"ranks", task.ranks},
                                       {"visibility", to_string(visibility)},
                                       {"need",
                                        {{"gpus", need.gpus},
                                         {"memory", need.memory_bytes},
                                         {"model", need.model},
                                         {"cpus", need.cpus}}}};
  try {
    return json.dump();
  } catch (const nlohmann::json::exception&) {
    throw invalid_argument("--submit slurm: expected text in UTF-8, got something else in ",
                           printable(task.name));
  }
}

namespace {

// The line of that number, from 0; empty where the file has fewer.
std::string line_at(const std::string& path, int index) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    fail_errno(errno, "cannot open ", printable(path));
  std::string line;
  for (int at = 0; at <= index; ++at) {
    if (!std::getline(file, line))
      line.clear();
  }
  return line;
}

// Throws: nlohmann's exceptions and Error when the line is no element.
SlurmElement parse_element(const std::string& line) {
  const auto json = nlohmann::json::parse(line);
  SlurmElement element{.name = json.at("name"),
                       .argv = json.at("argv"),
                       .environment = json.at("environment"),
                       .directory = json.at("directory"),
                       .run_dir = json.value("run_dir", ""),  // an older muster wrote none
                       .ranks = json.value("ranks", 1),
                       .visibility = parse_visibility(json.value("visibility", "job"))};
  if (json.contains("need")) {
    const auto& need = json.at("need");
    element.need = TaskNeed{.gpus = need.at("gpus"),
                            .memory_bytes = need.at("memory"),
                            .model = need.at("model"),
                            .cpus = need.at("cpus")};
  }
  if (element.argv.empty())
    throw invalid_argument("none");
  return element;
}

}  // namespace

SlurmElement read_element(const std::string& path, int index) {
  const auto line = line_at(path, index);
  try {
    return parse_element(line);
  } catch (const std::exception&) {
    throw invalid_argument(
        "--exec-element: expected element ", index, " in ", printable(path), ", got none");
  }
}

namespace {

// The program that the element becomes.
struct ElementProgram {
  Strings argv{};
  Environment environment{};
};

// The program of a job that an older muster submitted, which left the devices to Slurm.
ElementProgram program_as_given(const SlurmElement& element, const std::string& folder) {
  ElementProgram program{.argv = element.argv, .environment = own_environment()};
  for (const auto& [name, value] : element.environment)
    program.environment[name] = value;
  program.environment["MUSTER_TASK"] = element.name;
  if (element.run_dir.empty())
    return program;
  program.environment["MUSTER_RUN_DIR"] = element.run_dir;
  program.environment["MUSTER_TASK_DIR"] = folder;
  return program;
}

// "2 GPUs (NVIDIA A100 with 39.4 GiB free, …)".
std::string what_is_here(const DevicePool& pool, const TaskNeed& need) {
  const auto gpus = mapped(pool.hosts()[0].gpus, [&](const PoolGpu& gpu) {
    const std::string left = format_compared_bytes({gpu.memory_left, need.memory_bytes})[0];
    return cat(gpu.model, " with ", left, " free");
  });
  return cat(plural(gpus.size(), "GPU"), gpus.empty() ? "" : cat(" (", join(gpus, ", "), ")"));
}

// Finds where the task runs. Throws: unavailable where nothing fits.
Allocation place_of(const Task& task, const DevicePool& pool) {
  const TaskNeed& need = task.needs.front();
  if (auto where = pool.find(need))
    return *where;
  throw unavailable("task ",
                    printable(task.name),
                    ": expected ",
                    describe(need),
                    " of what Slurm has given it on ",
                    pool.hosts()[0].name,
                    ", got ",
                    what_is_here(pool, need),
                    "; name a model or a partition that has it (--sbatch)");
}

// The program as a run of tasks would start it on what Slurm has given: whole GPUs, and CPUs that
// Slurm counts.
ElementProgram program_as_placed(const SlurmElement& element, const std::string& folder) {
  Task task{.name = element.name,
            .argv = element.argv,
            .environment = element.environment,
            .directory = element.directory,
            .needs = {*element.need},
            .ranks = element.ranks};
  TaskNeed& need = task.needs.front();
  need.gpus = std::ceil(need.gpus);
  const DevicePool pool(probe_this_machine({.detail = GpuDetail::full, .links = need.gpus > 1}),
                        {.masks = inherited_masks(),
                         .cpus = std::max(1, need.cpus),
                         .numa_binding = NumaBinding::none});
  const Allocation where = place_of(task, pool);
  const TaskRunFacts facts{.run_dir = element.run_dir,
                           .launcher = own_program(),
                           .environment = own_environment(),
                           .visibility = element.visibility};
  // The batch script counts the attempts.
  const int attempt = get_env_count("MUSTER_ATTEMPT").value_or(0);
  const auto plan = cat(folder, "/", attempt, ".plan.json");
  if (task.ranks > 1)
    write_file(plan, plan_to_json(plan_of(task, pool, where, facts.visibility)));
  ElementProgram program{
      .argv = task_argv(task, facts, pool, plan, folder),
      .environment = task_environment(task, facts, pool, where, attempt, folder, "")};
  program.environment.erase("MUSTER_MARK");  // no run of muster's watches it
  return program;
}

}  // namespace

// From execve on the process is the task's program: nothing is returned.
void exec_element(const std::string& path, int index) {
  const SlurmElement element = read_element(path, index);
  std::string folder;
  if (!element.run_dir.empty()) {
    folder = task_folder_of(element.run_dir, element.name, index);
    make_task_folder(folder);
  }
  const ElementProgram program =
      element.need ? program_as_placed(element, folder) : program_as_given(element, folder);
  if (!element.directory.empty() && ::chdir(element.directory.c_str()) != 0)
    fail_errno(
        cat("task ", printable(element.name), ": cannot enter ", printable(element.directory)),
        errno);
  const auto path_of_program = find_program(program.argv[0], find_or(program.environment, "PATH"));
  expect_words_without_line_end(path_of_program, find_or(program.environment, "PATH"));
  const Strings settings = exec_entries(program.environment);
  const auto argv = exec_pointers(program.argv);
  const auto envp = exec_pointers(settings);
  for (const int signal : {SIGINT, SIGQUIT})
    ::signal(signal, SIG_DFL);  // a script's shell ignores them
  ::execve(path_of_program.c_str(), argv.data(), envp.data());
  throw cannot_exec(path_of_program, errno);
}

}  // namespace muster
