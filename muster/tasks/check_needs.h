// Whether every task could run at all, on some host, if nobody else were there: so that a task that would
// wait for ever is an error before anything starts. For the command, after the spec was read and the machines
// were asked. Pure.
#pragma once

#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/scores.h"
#include "muster/tasks/task.h"

namespace muster {

struct NeedsCheck {
  const Inventory& inventory;
  std::string source = {};     // the spec file, for errors; empty: not known, as of a sweep
  VisibilityMasks masks = {};  // on each host
  const Scores& scores = {};   // for `on = "fastest:2"`
};

// What can change is not asked for: memory that is in use, and what `idle`, `free:2` and `free>=20GiB` of
// `on` mean now. Cores of an inventory from a file that tells none are not counted. Throws: invalid_argument
// with each group of tasks none of whose alternatives any host could ever meet, up to ten, and for each
// alternative the nearest there is.
void check_needs(const std::vector<Task>& tasks, const NeedsCheck& check);

}  // namespace muster
