// What every backend must do: one list of checks, run over ranks as threads and over ranks as
// processes, for each backend. A check throws when a result is wrong. To add a backend, add it
// where the list is run (process_group_test.cc, conformance_main.cc); to add a rule, add a check to
// conformance.cc.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster::testing {

struct ConformanceCheck {
  std::string name;
  std::function<void(ProcessGroup&)> body;
};

const std::vector<ConformanceCheck>& conformance_checks();

}  // namespace muster::testing
