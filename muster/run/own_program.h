// How a process starts its own program again. For run.cc and for TaskSet tasks in processes.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

// For exec by a child of this process: the file that is running, even if its name now belongs to
// another file.
inline constexpr auto kOwnProgram = "/proc/self/exe";

// The arguments that this process was started with. argv may have changed: gflags, MPI_Init and
// others remove their arguments from it, and a process title may overwrite it. Falls back to `argv`
// if the C library does not provide them.
Strings own_command_line(int argc, char** argv);

// Gives this process its program's name; ps and top would otherwise show "exe" for kOwnProgram.
void take_own_name();

}  // namespace muster
