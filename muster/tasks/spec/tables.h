// The tables of a spec file, as templates of tasks. For spec.cc; a private header.
#pragma once

#include <string>

#include "muster/tasks/spec/problems.h"
#include "muster/tasks/spec/template.h"

namespace muster {

// One template a [[task]], with [defaults] put in; at least one. Problems go into `problems`, and
// what has some is not to be used. Throws: invalid_argument when it is no TOML, or there are too
// many problems.
TaskTemplates read_spec_tables(const std::string& text, SpecProblems& problems);

}  // namespace muster
