// A whole multi-GPU program in one call.
//
//   int main(int argc, char** argv) {
//     return muster::run(argc, argv, [](muster::Context& ctx) { ... });
//   }
//
// Started on its own, the program launches one rank per device (itself, once per rank) and
// supervises them. Started as a rank, by `muster run`, torchrun, mpirun or srun, it joins as that
// rank.
//
// A main() may call run() several times, for one job after another. The ranks are the same program,
// so they reach every call, but each rank runs only the call that it was started for. Earlier calls
// return what they returned in the launcher; later calls return the exit code of the rank's own
// call. Code between the calls runs on every rank too, and a rank's exit code is that of main().
#pragma once

#include <functional>

#include "muster/run/context.h"
#include "muster/run/run_options.h"

namespace muster {

// Runs `fn` on every rank. Returns the process's exit code: 0, or that of the failure. The failure
// is printed and, if a launcher asks for it, written to TORCHELASTIC_ERROR_FILE. Never throws, and
// never changes `argv`. The ranks get the arguments that the program itself was started with, even
// if a library has since removed some from `argv`.
int run(int argc, char** argv, const std::function<void(Context&)>& fn);
int run(const RunOptions& options, int argc, char** argv, const std::function<void(Context&)>& fn);

}  // namespace muster
