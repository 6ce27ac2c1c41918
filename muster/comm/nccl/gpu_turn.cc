#include "muster/comm/nccl/gpu_turn.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>

namespace muster {

namespace {

// A thread may be in the middle of a question to a store that has gone.
constexpr std::chrono::seconds kMostWait{2};

struct Turns {
  std::shared_timed_mutex mutex;
  std::atomic<bool> are_over = false;
};

// Never destroyed, since threads outlive what is static.
Turns& turns() {
  static auto& all = *new Turns;
  return all;
}

void end_turns() {
  turns().are_over = true;
  const std::unique_lock lock(turns().mutex, kMostWait);
}

}  // namespace

GpuTurn::GpuTurn() : lock_(turns().mutex), granted_(!turns().are_over) {}

void end_turns_at_exit() {
  static std::once_flag once;
  std::call_once(once, [] { std::atexit(end_turns); });
}

}  // namespace muster
