// The writer of a rank's file of events. From any thread; some tens of nanoseconds an event, and
// once in 32768 of them a millisecond, in which the file grows. What is written is there when the
// rank is killed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/trace/activity_layout.h"
#include "muster/trace/event_layout.h"

namespace muster {

class TraceEventFile : NoCopy {
 public:
  // Makes the file, or empties it. `activity` says whose it is. Throws: io.
  TraceEventFile(const std::string& path, const ActivityHeader& activity);
  ~TraceEventFile();

  void add_span(const char* name,
                uint32_t category,
                uint32_t thread,
                int64_t begin_ns,
                int64_t end_ns) noexcept;
  void add_call(const ActivityCall& call, int64_t end_ns) noexcept;
  void add_thread(const char* name, uint32_t thread) noexcept;
  void add_lost() noexcept;  // an event that is not here

  uint64_t count() const { return count_.load(std::memory_order_relaxed); }  // of events until now

  // What is to be added to this host's time of day for rank 0's.
  void correct_clock(int64_t correction_ns, int64_t uncertainty_ns) noexcept;

 private:
  TraceEvent* next() noexcept;  // nullptr where there is no room
  TraceEvent* grow(size_t chunk) noexcept;

  Fd fd_;
  EventHeader* header_ = nullptr;
  std::atomic<uint64_t> count_ = 0;
  std::mutex growing_;
  std::array<std::atomic<TraceEvent*>, kEventChunks> chunks_{};
};

// "RUN_DIR/trace/ATTEMPT/RANK".
std::string event_path(const std::string& run_dir, int attempt, int rank);

}  // namespace muster
