// Which call of muster::run a process is for. main() may have several calls, and the ranks of each
// are the same program, which reaches all of them. A rank makes its own call, returns the recorded
// exit codes for earlier calls, and skips later calls, which return its own exit code, so that no
// failure is lost. For run.cc, and for the children of a TaskSet.
#pragma once

#include <optional>
#include <string>

namespace muster {

// "<pid of the parent>:<exit codes of earlier calls, joined by commas>". A value left in the
// environment by another process is ignored, so under another launcher every call is made.
inline constexpr auto kRunCallsVariable = "MUSTER_RUN_CALLS";

// The exit code of the call that this process has reached, if another process makes that call.
// Throws: invalid_argument for a variable that muster::run did not write.
std::optional<int> code_of_call_made_elsewhere();

// Whether a call of muster::run has started this process, and not another launcher.
bool is_started_by_run_call();

// Marks that the process has reached what it was started for, other than by muster::run. It may
// then end anywhere: its parent knows whether it has answered.
void come_to_own_call();

// Call it when a call has its exit code, wherever it was made.
void count_run_call(int exit_code);

// The value of kRunCallsVariable for children of this process.
std::string run_calls_for_children();

}  // namespace muster
