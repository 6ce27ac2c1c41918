// The process that an activity file is of, as this one sees it: whether it lives, and where it is.
// It is never taken for another process that has got its number.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/trace/read_activity.h"

namespace muster {

enum class ProcessState {
  unknown,  // of another host, or not to be seen from here
  gone,
  stopped,  // by SIGSTOP or a debugger
  alive,
};

ProcessState process_state(const ActivityView& view);

// Its main thread's stack, a line a frame, innermost call first, and those of the threads in which
// LibTorch computes gradients for GPUs, where these work; empty where it does not answer in time,
// or cannot be asked. Blocking: at most twice `patience`, and some seconds for source lines.
std::string stack_of_rank(const ActivityView& view, const std::string& path, milliseconds patience);

// These addresses in the process `pid` as functions, a line each.
std::string named_frames(const std::vector<uint64_t>& addresses, int64_t pid);

}  // namespace muster
