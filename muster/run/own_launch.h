// The options of a program that starts its own ranks, as the launcher takes them. For run.cc.
#pragma once

#include <optional>

#include "muster/base/clock.h"
#include "muster/launch/launch.h"
#include "muster/run/run_options.h"

namespace muster {

// These three are what the rank asks for too. The environment comes before the options.
Surplus surplus_of(const RunOptions& options);
bool wants_backtrace(const RunOptions& options);
// Throws: invalid_argument for a time that is not above 0.
milliseconds collective_timeout_of(const RunOptions& options);

// Returns what the launcher is to do. Throws: invalid_argument, as `muster run` for its flags.
LaunchOptions own_launch_options(const RunOptions& options, int argc, char** argv);

}  // namespace muster
