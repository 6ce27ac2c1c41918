// Whether every task could run at all, on some host, if nobody else were there: so that a task that
// would wait for ever is an error before anything starts. For the command, after the spec was read
// and the machines were asked. Pure.
#pragma once

#include <optional>
#include <string>

#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/selection/scores.h"
#include "muster/placement/selection/selection.h"
#include "muster/tasks/task.h"

namespace muster {

struct NeedsCheck {
  const Inventory& inventory;
  std::string source{};             // the spec file, for errors; empty: not known, as of a sweep
  std::string text{};               // what it says, to show the line; empty: not known
  std::string need_flags{};         // a sweep's own: "--need-gpus 3"
  VisibilityMasks masks{};          // on each host
  const Scores& scores{};           // for `on = "fastest:2"`
  std::optional<Selection> gpus{};  // the run's `--gpus`; nothing: all
  int cpus = 0;                     // the run's `--cpus`; 0: all
};

// The check leaves out what can change: memory that is in use, and what `idle`, `free:2` and
// `free>=20GiB` mean now, and so `fastest:2` among these. Cores of an inventory from a file that
// tells none are not counted, unless `cpus` says how many to use. Throws: invalid_argument with
// each group of tasks none of whose alternatives any host could ever meet, up to ten, each with the
// place of the key that is to blame, and for each alternative the nearest there is. An `on` that
// names what is nowhere is one of these, whatever the alternatives.
void check_needs(const Tasks& tasks, const NeedsCheck& check);

}  // namespace muster
