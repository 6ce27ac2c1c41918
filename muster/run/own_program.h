// How a process starts the program again that it is. For run.cc and the tasks of a TaskSet that are
// processes.
#pragma once

#include <string>
#include <vector>

namespace muster {

// For exec, by a child of this process: the file that runs now, also where another has its name by then.
inline constexpr const char* kOwnProgram = "/proc/self/exe";

// The arguments that this process was started with. argv may no longer be those: gflags, MPI_Init and others
// take what is theirs out of it, and a process title may be written over it. `argv` where the C library does
// not tell.
std::vector<std::string> own_command_line(int argc, char** argv);

// What was executed as kOwnProgram is "exe" to ps and top; from now on it has its program's name.
void take_own_name();

}  // namespace muster
