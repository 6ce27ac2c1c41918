// `after` of a spec's tasks: which tasks each entry means (the rule is in spec.h), and whether any
// task would wait for itself. For spec.cc; a private header.
#pragma once

#include <string_view>
#include <vector>

#include "muster/base/lists.h"
#include "muster/tasks/spec/problems.h"
#include "muster/tasks/spec/template.h"

namespace muster {

// Fills in `after` of `tasks`, of which those from begins[i] to begins[i + 1] came of templates[i].
// Names are unique. Problems: an entry that means no task, a cycle.
void resolve_after(const TaskTemplates& templates,
                   const Indices& begins,
                   Tasks& tasks,
                   SpecProblems& problems);

// Positions in the list given, the first one again at the end: each waits for the next. Empty:
// there is no cycle. `after[i]` are the positions of what task i waits for.
Indices find_cycle(const std::vector<Indices>& after);

// `*` stands for any characters, none too.
bool fits_glob(std::string_view pattern, std::string_view text);

}  // namespace muster
