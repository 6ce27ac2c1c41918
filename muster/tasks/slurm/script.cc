// The script stands between Slurm and `muster tasks --exec-element`: it passes signals on, tries
// failed starts again, has Slurm requeue a task that stopped, and ends as the task did. It is plain
// sh, since nothing else is sure to be there.
#include "muster/tasks/slurm/script.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "muster/base/error.h"
#include "muster/base/shell.h"
#include "muster/launch/exit_report.h"

namespace muster {
namespace {

constexpr int64_t kKillAfterSeconds = 30;  // from SIGTERM at the time limit to SIGKILL
constexpr int64_t kLongestPause = 3600;

// Rounded up.
int64_t whole_seconds(milliseconds time) {
  return (time.count() + 999) / 1000;
}

// How long to wait after failed start number `start`, from 1: the back-off doubles each time.
int64_t pause_after(const Task& task, int start) {
  int64_t pause = whole_seconds(task.back_off);
  for (int failed = 1; failed < start && pause < kLongestPause; ++failed)
    pause *= 2;
  return std::min(pause, kLongestPause);
}

// The flag for the task's GPUs. Throws: invalid_argument for a model that is no type's name.
std::string gres_of(const Task& task) {
  const TaskNeed& need = task.needs.front();
  std::string type = lower_case(need.model);
  constexpr auto kTypeCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_-";
  if (type.find_first_not_of(kTypeCharacters) != npos) {
    throw invalid_argument(
        "--submit slurm: expected a model that can be a type of Slurm's GPUs (a100), got '",
        printable(need.model),
        "' (task ",
        printable(task.name),
        ")");
  }
  if (!type.empty())
    type += ':';
  return cat("--gres=gpu:", type, static_cast<int64_t>(std::ceil(need.gpus)));
}

// All starts and the pauses between them, each at its longest.
milliseconds whole_time(const Task& task) {
  milliseconds time = *task.time_limit * (task.retries + 1);
  if (task.retries == 0)
    return time;
  for (int start = 1; start <= task.retries; ++start)
    time += std::chrono::seconds(pause_after(task, start));
  return time + std::chrono::seconds(kKillAfterSeconds * (task.retries + 1));
}

// The shell that stays between Slurm and what it starts: Slurm may signal it alone, and it passes
// that on. Once it was to end, nothing is started again. A signal that comes while a child begins
// waits until that can hear it. `wait` comes back for a signal too, sometimes before the trap has
// run, and is asked again while the child lives; for one that had ended it then says 127. A child
// that is started in the background ignores SIGINT, which `muster` puts right.
constexpr auto kRun = R"(child= stopped= heard= early=
pass() {
  heard=yes
  case $1 in USR1 | USR2) ;; *) stopped=yes ;; esac
  case $child in
    '') early="$early $1" ;;
    *) tell "$1" 2>/dev/null ;;
  esac
}
for signal in HUP INT QUIT TERM USR1 USR2; do trap "pass $signal" "$signal"; done
run() {
  code= heard=yes
  "$@" &
  child=$!
  [ -z "$early" ] || sleep 1
  for signal in $early; do pass "$signal"; done
  early=
  while [ -n "$heard" ] || kill -0 "$child" 2>/dev/null; do
    heard=
    wait "$child"
    ended=$?
    [ -n "$code" ] && [ "$ended" = 127 ] || code=$ended
  done
  child=
}
)";

// The child of `timeout` is told, where that stands between. `timeout` itself ends by most signals,
// and by one that comes while it starts that child it leaves it behind.
std::string tell_function(const Task& task) {
  const bool limited = task.retries > 0 && task.time_limit;
  return limited ? R"(tell() {
  for try in 1 2 3 4 5 6 7 8 9 10; do
    program=$(cat "/proc/$child/task/$child/children")
    [ -z "$program" ] || break
    sleep 0.1
  done
  kill -s "$1" ${program:-"$child"}
}
)"
                 : "tell() {\n  kill -s \"$1\" \"$child\"\n}\n";
}

// Exit code 75 asks to be started again: by Slurm, whose job may be about to end. Whoever has the
// job ended (scancel, a time limit) does not want that.
std::string requeue_function() {
  return cat("requeue() {\n  [ \"$code\" != ",
             kStoppedExitCode,
             " ] || [ -n \"$stopped\" ] || scontrol requeue \"$SLURM_JOB_ID\"\n}\n");
}

// Slurm is to know of the signal that ended a task, as muster's own results do: what stands between
// tells it as 128 + n. Signals that stop a process do not end the shell.
std::string end_function() {
  return cat("end() {\n  requeue\n  trap - HUP INT QUIT TERM USR1 USR2\n  case $code in\n    ",
             128 + SIGSTOP,
             " | ",
             128 + SIGTSTP,
             " | ",
             128 + SIGTTIN,
             " | ",
             128 + SIGTTOU,
             ") ;;\n    *) [ \"$code\" -le 128 ] || [ \"$code\" -gt ",
             128 + SIGRTMAX,
             " ] || kill -$((code - 128)) $$ ;;\n  esac\n  exit \"$code\"\n}\n");
}

// All starts but the last.
std::string starts(const Task& task, const std::string& command) {
  std::string text = "for pause in";
  for (int start = 1; start <= task.retries; ++start)
    text += cat(" ", pause_after(task, start));
  return text + cat("; do\n  run ",
                    command,
                    "\n  [ \"$code\" != 0 ] || exit 0\n",
                    "  [ \"$code\" != ",
                    kStoppedExitCode,
                    " ] || end\n"
                    "  while [ -z \"$stopped\" ] && [ \"$pause\" -gt 0 ]; do\n"
                    "    sleep 1\n"
                    "    pause=$((pause - 1))\n"
                    "  done\n"
                    "  [ -z \"$stopped\" ] || end\n"
                    "  MUSTER_ATTEMPT=$((MUSTER_ATTEMPT + 1))\ndone\n");
}

}  // namespace

// Slurm chooses nodes and GPUs itself. A priority below the highest becomes a nice value.
Strings slurm_request(const Task& task, int highest) {
  if (!task.on.empty()) {
    throw invalid_argument(
        "--submit slurm: expected tasks without on, since Slurm chooses the GPUs, got on = '",
        printable(task.on),
        "' (task ",
        printable(task.name),
        "); name a model instead");
  }
  Strings flags = {"--nodes=1", "--ntasks=1"};
  const TaskNeed& need = task.needs.front();
  if (need.gpus > 0)
    flags.push_back(gres_of(task));
  if (need.cpus > 0)
    flags.push_back(cat("--cpus-per-task=", need.cpus));
  if (task.time_limit)
    flags.push_back(cat("--time=", slurm_time(whole_time(task))));
  if (task.priority < highest)
    flags.push_back(cat("--nice=", highest - task.priority));
  return flags;
}

// None of these keeps a task from being submitted.
Strings slurm_notes(const Task& task) {
  Strings notes;
  const TaskNeed& need = task.needs.front();
  if (task.needs.size() > 1)
    notes.emplace_back("Slurm knows no alternatives: the first of needs is asked for");
  if (need.memory_bytes > 0)
    notes.emplace_back(
        "Slurm does not count the memory of GPUs: name a model or a partition that has it");
  if (need.gpus > 0 && need.gpus < 1)
    notes.emplace_back("Slurm gives whole GPUs: a part of one asks for one");
  return notes;
}

std::string slurm_time(milliseconds time) {
  const int64_t seconds = whole_seconds(time);
  const auto two = [](int64_t value) {
    return cat(value < 10 ? "0" : "", value);
  };
  const std::string hours = two(seconds / 3600 % 24);
  const std::string minutes = two(seconds / 60 % 60);
  return cat(seconds / 86'400, "-", hours, ":", minutes, ":", two(seconds % 60));
}

// Every element of the array runs the same script, with an index of its own.
std::string slurm_script(const Task& task,
                         const std::string& elements_path,
                         const SlurmOptions& options) {
  Strings words = options.exec_element;
  words.push_back(elements_path);
  std::string command = shell_command(words) + " \"$SLURM_ARRAY_TASK_ID\"";
  std::string script =
      "#!/bin/sh\n# One element of a job array of muster tasks; the file has what each runs.\n";
  if (task.retries > 0 && task.time_limit)
    command =
        cat("timeout -k ", kKillAfterSeconds, " ", whole_seconds(*task.time_limit), " ", command);
  script += cat(kRun,
                tell_function(task),
                requeue_function(),
                end_function(),
                "export MUSTER_ATTEMPT=$((${SLURM_RESTART_COUNT:-0} * ",
                task.retries + 1,
                "))\n");
  if (task.retries > 0)
    script += starts(task, command);
  return script + cat("run ", command, "\nend\n");
}

}  // namespace muster
