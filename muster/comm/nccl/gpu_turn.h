// Threads beside the program that ask a GPU. When the process ends, CUDA goes while they still run,
// and to ask it then, or to let go of an operation that has its events, ends the process by an
// abort.
#pragma once

#include <shared_mutex>
#include <utility>

namespace muster {

// While it lives and is granted, CUDA stays. Once CUDA is about to go, none is granted any more:
// the thread keeps what it has for ever, and ends. Blocking: no.
class GpuTurn {
 public:
  GpuTurn();
  explicit operator bool() const { return granted_; }

 private:
  std::shared_lock<std::shared_timed_mutex> lock_;
  bool granted_;
};

// From now on the end of the process waits for the turns that are under way, for two seconds at
// most. To be called when CUDA is there: what is registered later runs earlier.
void end_turns_at_exit();

// For what a thread without a turn has: to let it go would ask CUDA.
template <class T>
void keep_for_ever(T value) {
  static_cast<void>(new T(std::move(value)));
}

}  // namespace muster
