// `needs` of a spec file. For tables.cc; a private header.
#pragma once

#include "muster/tasks/spec/values.h"
#include "muster/tasks/task.h"

namespace muster {

// `needs = …`: one table or several, of a task with so many ranks.
TaskNeeds read_alternatives(const toml::node& value, int ranks, const SpecValues& values);

}  // namespace muster
