// Makes numbered items on worker threads, a bounded number ahead, and returns them in order. The
// part of the loader (loader.h) that handles threads; knows nothing of samples and tensors.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"

namespace muster {

// What a worker is doing, for messages when it fails or does not end.
struct WorkerPlace {
  int worker = -1;  // -1: the calling thread
  std::atomic<int64_t> sample = -1;
};

struct PrefetchOptions {
  int workers = 0;    // 0: the calling thread makes items on request
  int64_t ahead = 0;  // most items made but not handed out; 0: two per worker
  std::optional<milliseconds> timeout =
      {};  // of waiting for one; without, a warning after a minute
  // true: worker n mod workers makes item n, so that its items build on each other. false: any free
  // worker makes it.
  bool in_turns = false;
};

class Prefetch : NoCopy {
 public:
  using Thing = std::shared_ptr<void>;
  // Called by several threads at once, each with one intra-op thread and without gradients.
  using Make = std::function<Thing(int64_t number, WorkerPlace& place)>;

  // Makes items `begin` … `end` - 1; `end` may be beyond what is ever requested.
  Prefetch(Make make, int64_t begin, int64_t end, const PrefetchOptions& options);
  // Blocking: until the workers have finished their current items and ended. A worker past the
  // timeout is abandoned.
  ~Prefetch();

  // The next item. Blocking: until it is made. Throws: what `make` threw for it; timeout naming the
  // sample and the worker.
  Thing next();
  // The next item if it is already made, else nothing.
  std::optional<Thing> next_if_ready();

  // How long next() has waited for workers since the last call.
  std::chrono::nanoseconds take_stall() {
    return std::exchange(stalled_, std::chrono::nanoseconds(0));
  }

  struct State;  // shared with the workers

 private:
  void start_workers();
  void stop_workers();
  Thing take();
  std::string places_text() const;
  [[noreturn]] void fail_late();

  Make make_;
  int64_t next_;
  int64_t end_;
  PrefetchOptions options_;
  std::chrono::nanoseconds stalled_{0};
  bool left_behind_ = false;
  std::shared_ptr<State> state_;  // shared with the workers
};

}  // namespace muster
