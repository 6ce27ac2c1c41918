// Backends differ in what they do by themselves, and what is left to their user. capabilities.cc
// has a row for each.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

struct Capabilities {
  const char* backend = "";
  bool on_gpus = false;         // its collectives run on GPUs; others copy tensors through the host
  bool copies_gpus = false;     // every operation takes a GPU's tensor, and copies it itself
  bool compares_calls = false;  // a mismatched collective is an error on every rank
  bool ends_waits = false;      // at the time limit, whatever is waited for
  bool ends_messages = false;   // at the time limit: send and recv
  bool records_calls = false;   // in the rank's activity file
  bool matches_by_order = false;      // send and recv, not by tag and direction
  bool can_be_interrupted = false;    // by interrupt_groups()
  bool leaves_without_store = false;  // when all have left, nobody needs the store any more
};

// Throws: invalid_argument for no backend.
const Capabilities& capabilities_of(const std::string& backend);

Strings known_backends();

}  // namespace muster
