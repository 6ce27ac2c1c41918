// Which call of muster::run a process is for. main() may have several, and the ranks of each are the program
// again, which comes to all of them: such a rank makes its own call, takes those before it for done, with the
// exit codes that they had, and leaves out those after it, which have its own exit code, so that a failure is
// not lost. For run.cc, and for the children of a TaskSet.
#pragma once

#include <optional>
#include <string>

namespace muster {

// "<pid of who started this process>:<exit codes of the calls before, joined by commas>". What another
// process has left in the environment does not count, so under another launcher every call is made.
inline constexpr const char* kRunCallsVariable = "MUSTER_RUN_CALLS";

// Of the call that this process has come to: its exit code, where it is not for this process to make. Throws:
// invalid_argument for a variable that muster::run did not write.
std::optional<int> code_of_call_made_elsewhere();

// A process that has come to what it was started for, other than by muster::run, may end where it likes: its
// parent knows whether it has answered.
void come_to_own_call();

// To be called when a call has its exit code, wherever it was made.
void count_run_call(int exit_code);

// kRunCallsVariable's value for children of this process.
std::string run_calls_for_children();

}  // namespace muster
