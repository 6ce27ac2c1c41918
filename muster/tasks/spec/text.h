// What must hold of a spec's text before it is read as TOML: for spec.cc; a private header.
#pragma once

#include <cstddef>
#include <string>

#include "muster/tasks/spec/problems.h"

namespace muster {

inline constexpr size_t kMaxSpecBytes = size_t{64} << 20;

// Of a size that fits in memory.
// Throws: invalid_argument with the place.
void check_spec_text(const std::string& text, SpecProblems& problems);

}  // namespace muster
