// Makes numbered things on worker threads, a bounded number ahead, and hands them out in their order. The
// part of the loader (loader.h) that knows threads, and nothing of samples and tensors.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster {

// What a worker is at, for messages when it fails or does not end.
struct WorkerPlace {
  int worker = -1;  // -1: the thread that asks
  std::atomic<int64_t> sample = -1;
};

struct PrefetchOptions {
  int workers = 0;    // 0: made when they are asked for, by the thread that asks
  int64_t ahead = 0;  // at most as many are made and not handed out; 0: two for each worker
  std::optional<std::chrono::milliseconds> timeout =
      {};  // of waiting for one; without, a warning after a minute
  // Number n is made by worker n mod workers, so what a worker makes follows on what it made before; else by
  // whichever is free.
  bool in_turns = false;
};

class Prefetch {
 public:
  using Thing = std::shared_ptr<void>;
  // Called by several threads at once, which compute with one thread each and without gradients.
  using Make = std::function<Thing(int64_t number, WorkerPlace& place)>;

  // Things `begin` … `end` - 1, of which `end` may be farther than anybody asks for.
  Prefetch(Make make, int64_t begin, int64_t end, const PrefetchOptions& options);
  // Blocking: until the workers have ended what they are at, and all are gone. One that is past the timeout
  // is left behind.
  ~Prefetch();
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // The next one. Blocking: until it is made. Throws: what `make` has thrown, for this one; timeout naming
  // the sample and the worker.
  Thing next();
  // The next one if it is made already, else nothing.
  std::optional<Thing> next_if_ready();

  // How long next() has waited for workers since the last call.
  std::chrono::nanoseconds take_stall() { return std::exchange(stalled_, std::chrono::nanoseconds(0)); }

 private:
  struct State;

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
