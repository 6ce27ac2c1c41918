// Paths that a person gives `muster checkpoint`, and errors about what lies there.
#pragma once

#include <string>

#include "muster/base/error.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/base/usage.h"
#include "muster/checkpoint/files/path_facts.h"
#include "muster/checkpoint/files/view.h"

namespace muster {

inline void expect_there(const std::string& path) {
  if (exists_at(path))
    return;
  fail_usage("expected a checkpoint's folder or a safetensors file, got '",
             shown_text(path),
             "', which does not exist; see `muster checkpoint ls`");
}

// Returns what `read` returns. An error about files is no wrong usage, and its text, which may hold
// anything, is made harmless to a terminal.
template <class Read>
auto read_files(const Read& read, ErrorCode code = ErrorCode::io) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(code, shown_text(without_command(error.message()), 1000));
  }
}

}  // namespace muster
