// Settings of where and how the tasks of a run are to run. The command line says them, and
// tasks.json keeps them for when the run goes on. Values and text.
#pragma once

#include <optional>
#include <string>

#include "muster/placement/plan.h"
#include "muster/placement/request.h"
#include "muster/placement/selection/selection.h"

namespace muster {

struct TasksSettings {
  std::optional<Selection> gpus{};  // the only ones to use; nothing: all
  int cpus = 0;                     // of each host; 0: as many as it has
  int max_running = 0;              // tasks at a time at most; 0: no limit
  std::string inventory{};          // a file, absolute, whose machines stand for the real ones
  std::string hosts{};              // "a:4,b"; empty: not told
  std::string ssh{};                // the command that reaches them; empty: ssh
  std::string remote_muster{};      // the path of `muster` there; empty: as here
  bool standalone = false;          // this machine alone
  std::optional<NumaBinding> numa_binding{};  // nothing: node, where it can be had
  std::optional<Visibility> visibility{};     // of its GPUs, what a task's ranks see; nothing: job
  bool lease = true;
  std::optional<bool> fail_fast{};
  bool allow_nan = false;  // a result that is no finite number is no failure
};

// Texts by the flags' names; a setting that was not told has none.
StringMap to_texts(const TasksSettings& settings);

// Names of no setting are passed over. Throws: invalid_argument for a text that its setting does
// not accept.
TasksSettings settings_of(const StringMap& texts);

}  // namespace muster
