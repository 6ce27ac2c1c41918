// The spec file of `muster tasks SPEC.toml`: TOML text to tasks. docs/tasks.md has every key.
//
//     [defaults]                                # any of a task's keys but name, each and after
//     retries = 1
//
//     [[task]]
//     name  = "lr-{lr}"
//     argv  = ["./train", "--lr", "{lr}"]       # executed as it is, never by a shell
//     # a grid, in order, the last one changing fastest:
//     each  = { lr = [0.1, 0.01], seed = "1..5" }
//     needs = [{ gpus = 1, memory = "20GiB" }, { cpus = 4 }]
//     after = ["prepare"]
//
// - `{lr}` is replaced in name, argv, env's values, dir and after; `{{` and `}}` are braces. A
//   number is written as in the file (1e-4 stays 1e-4), less its '_'.
// - What `after` means: with `{x}` replaced, the task of that name; else, with a `*`, all other
//   tasks whose names fit (one at least). An entry with a placeholder that its own task has not
//   must be another [[task]]'s name as it is written there: all tasks that came of that one, of
//   those parameters that both have only the ones with this task's values.
// - `needs` left out is one GPU a rank, or one core a rank: [{ gpus = RANKS }, { cpus = RANKS }].
//   `gpus` and `cpus` are the whole task's.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/tasks/task.h"

namespace muster {

// The text of the file or pipe; of one that is too large for a spec, more than tasks_of_text takes.
// Throws: io when it cannot be read; invalid_argument when it is neither.
std::string read_spec(const std::string& path);

// The tasks of a text, in its order; names are unique, every name in `after` exists, nothing waits
// for itself. `source` stands for the file in errors. Throws: invalid_argument with up to ten
// problems, each as "file:line:column: expected …, got …" and a caret under the character.
// `warnings`, if asked for, gets a text for each parameter of `each` that no task uses.
Tasks tasks_of_text(const std::string& text,
                    const std::string& source,
                    Strings* warnings = nullptr);

// The needs of a task without `needs`.
TaskNeeds default_needs(int ranks);

}  // namespace muster
