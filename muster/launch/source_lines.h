// From what a rank of muster::run says of its stack, to what people read: functions and source lines, as
// addr2line finds them in the program and its libraries. For the failure card; values and text, but for that
// program.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "muster/launch/worker_exit.h"

namespace muster {

// `stack` with its lines "  #3 /path/program(+0x1a2b) symbol" as "  #3 function at file.cc:12", or, where
// there is no line, "  #3 function (program+0x1a2b)". Calls that LibTorch makes of itself are counted only.
// Other lines stay; so do those of files that have changed since `taken`, which are of another program now.
// Blocking: some seconds at most, where a library is large.
std::string with_source_lines(const std::string& stack,
                              std::chrono::system_clock::time_point taken = std::chrono::system_clock::now());

// A rank that a signal ended has said its stack among the `lines` of its standard error: takes it from there.
// What an uncaught exception said becomes the message.
void take_signal_stack(WorkerExit& exit, std::vector<std::string>& lines);

}  // namespace muster
