// The tasks of `muster tasks --sweep lr=0.1,0.01 --sweep seed=1..5 -- CMD {lr} {seed}`: the same
// that a spec file with `each` gives. Pure.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/tasks/task.h"

namespace muster {

struct SweepOptions {
  Strings sweeps{};   // "lr=0.1,0.01", "seed=1..5", "seed=1..5,9"
  Strings command{};  // with placeholders
  // All else that the tasks have in common, with placeholders in environment and directory. Without
  // needs, each task has those of a spec's task without any.
  Task common{};
};

// A task for every combination, the last sweep's value changing fastest, named "lr=0.1,seed=1".
// What a file's name must not have (a slash, a control character) becomes '_'. A name that is too
// long is cut, and "~2", "~3" … tell apart names that have become the same. `warnings`, if asked
// for, gets a text for each parameter that has one value, or that the command does not use. Throws:
// invalid_argument, pointing at the character.
Tasks tasks_of_sweep(const SweepOptions& options, Strings* warnings = nullptr);

}  // namespace muster
