#include "muster/tasks/slurm_script.h"

#include <signal.h>

#include <algorithm>
#include <cmath>

#include "muster/base/error.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"
#include "muster/tasks/reachable_gpus.h"

namespace muster {
namespace {

constexpr int64_t kKillAfterSeconds = 30;  // SIGTERM at the time limit, SIGKILL so long after it
constexpr int64_t kLongestPause = 3600;

int64_t whole_seconds(std::chrono::milliseconds time) {
  return (time.count() + 999) / 1000;
}

// Before start number `start`, from 1.
int64_t pause_before(const Task& task, int start) {
  const double pause = static_cast<double>(whole_seconds(task.back_off)) * std::pow(2.0, start - 1);
  return static_cast<int64_t>(std::min(pause, static_cast<double>(kLongestPause)));
}

std::string gres_of(const Task& task) {
  const TaskNeed& need = task.needs.front();
  std::string type = lower_case(need.model);
  const auto may_be = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (!std::all_of(type.begin(), type.end(), may_be)) {
    throw Error(ErrorCode::invalid_argument,
                cat("--submit slurm: expected a model that can be a type of Slurm's GPUs (a100), got '",
                    printable(need.model), "' (task ", printable(task.name), ")"));
  }
  if (!type.empty()) type += ':';
  return cat("--gres=gpu:", type, static_cast<int64_t>(std::ceil(need.gpus)));
}

// All starts and the pauses between them.
std::chrono::milliseconds whole_time(const Task& task) {
  std::chrono::milliseconds time = *task.time_limit * (task.retries + 1);
  if (task.retries == 0) return time;
  for (int start = 1; start <= task.retries; ++start) time += std::chrono::seconds(pause_before(task, start));
  return time + std::chrono::seconds(kKillAfterSeconds * (task.retries + 1));
}

// So that Slurm knows of the signal that ended a task, as muster's own results do: what stands between tells
// it as 128 + n.
std::string last_start(const Task& task, const std::string& command) {
  const bool is_between = task.ranks > 1 || (task.retries > 0 && task.time_limit);
  if (!is_between) return cat("exec ", command, "\n");
  return cat(command, "\ncode=$?\n", "[ \"$code\" -le 128 ] || [ \"$code\" -gt ", 128 + SIGRTMAX,
             " ] || kill -$((code - 128)) $$\nexit \"$code\"\n");
}

}  // namespace

std::vector<std::string> slurm_request(const Task& task, int highest) {
  if (!task.on.empty()) {
    throw Error(ErrorCode::invalid_argument,
                cat("--submit slurm: expected tasks without on, since Slurm chooses the GPUs, got on = '",
                    printable(task.on), "' (task ", printable(task.name), "); name a model instead"));
  }
  std::vector<std::string> flags = {"--nodes=1", "--ntasks=1"};
  const TaskNeed& need = task.needs.front();
  if (need.gpus > 0) flags.push_back(gres_of(task));
  if (need.cpus > 0) flags.push_back(cat("--cpus-per-task=", need.cpus));
  if (task.time_limit) flags.push_back(cat("--time=", slurm_time(whole_time(task))));
  if (task.priority < highest) flags.push_back(cat("--nice=", highest - task.priority));
  return flags;
}

std::vector<std::string> slurm_notes(const Task& task) {
  std::vector<std::string> notes;
  const TaskNeed& need = task.needs.front();
  if (task.needs.size() > 1)
    notes.emplace_back("Slurm knows no alternatives: the first of needs is asked for");
  if (need.memory_bytes > 0)
    notes.emplace_back("Slurm does not count the memory of GPUs: name a model or a partition that has it");
  if (need.gpus > 0 && need.gpus < 1)
    notes.emplace_back("Slurm gives whole GPUs: a part of one asks for one");
  return notes;
}

std::string slurm_time(std::chrono::milliseconds time) {
  const int64_t seconds = whole_seconds(time);
  const auto two = [](int64_t value) { return cat(value < 10 ? "0" : "", value); };
  return cat(seconds / 86'400, "-", two(seconds / 3600 % 24), ":", two(seconds / 60 % 60), ":",
             two(seconds % 60));
}

std::string slurm_script(const Task& task, const std::string& elements_path, const SlurmOptions& options) {
  std::string command;
  for (const std::string& word : options.exec_element) command += shell_quoted(word) + " ";
  command += cat(shell_quoted(elements_path), " \"$SLURM_ARRAY_TASK_ID\"");
  std::string script =
      "#!/bin/sh\n# One element of a job array of muster tasks; the file has what each runs.\n";
  if (task.retries == 0) return script + last_start(task, command);
  if (task.time_limit)
    command = cat("timeout -k ", kKillAfterSeconds, " ", whole_seconds(*task.time_limit), " ", command);
  script += "export MUSTER_ATTEMPT=0\n";
  script += cat("for pause in");
  for (int start = 1; start <= task.retries; ++start) script += cat(" ", pause_before(task, start));
  script += cat("; do\n  ", command, " && exit 0\n  sleep \"$pause\"\n",
                "  MUSTER_ATTEMPT=$((MUSTER_ATTEMPT + 1))\ndone\n");
  return script + last_start(task, command);
}

}  // namespace muster
