// The writer of a rank's activity file (activity_layout.h): one in a process, which everything that
// a rank does writes to. Lock-free, some tens of nanoseconds an event, from any thread; nothing at
// all where no file is open. It knows no tensor and no group: those who call it say what they do as
// text and numbers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/trace/activity_layout.h"
#include "muster/trace/category.h"
#include "muster/trace/event_file.h"

namespace muster {

// A collective, or a message to or from a `peer`.
struct CallFacts {
  const char* group = "";
  const char* operation = "";
  int64_t sequence = 0;
  const char* type = "";  // "f32"; empty without a tensor
  const int64_t* sizes = nullptr;
  size_t dimensions = 0;
  int64_t bytes = 0;
  int peer = -1;
  int tag = 0;
};

struct ActivityOwner {
  int rank = 0;
  int world_size = 1;
  int attempt = 0;
  std::string device{};
};

struct ActivitySoftware {
  std::string libtorch{};     // "2.15.0"
  std::string backend{};      // "nccl"
  std::string device_name{};  // "NVIDIA H100 80GB HBM3"
};

class Activity : NoCopy {
 public:
  // Makes the file, or takes the one that is there, for this process and its end; the calling
  // thread is the main thread. Throws: io; failed_precondition where another process writes to it.
  Activity(const std::string& path, const ActivityOwner& owner);
  ~Activity();

  // This process's; nullptr where there is none.
  static Activity* get() { return current_.load(std::memory_order_acquire); }
  static void set(Activity* activity) { current_.store(activity, std::memory_order_release); }

  // The number of the call, for its end.
  uint64_t begin_call(const CallFacts& facts) noexcept;
  void end_call(uint64_t number, CallState state) noexcept;

  // A span that the calling thread is in. It ends with those within it, and only in its own thread.
  struct Entered {
    const void* thread = nullptr;  // nullptr: there was no room for one more thread
    uint32_t depth = 0;
    int64_t begin_ns = 0;
  };
  Entered enter(const char* name, Category category, bool inherits) noexcept;
  void leave(const Entered& span) noexcept;
  // The thread ends whose record this is: for a destructor of that thread's.
  void give_back(ActivityThread& record) noexcept;

  // What the main thread's time is while it is in no span that says it.
  void set_category_outside(Category category) noexcept;
  // By Category: the main thread's time until now, with what it is in. For any thread.
  std::array<int64_t, kActivityCategories> totals() const noexcept;

  void note_step(int64_t step) noexcept;
  void note_samples(int64_t more) noexcept;
  void note_loss(double loss) noexcept;
  void close() noexcept;  // the rank leaves its function

  void set_software(const ActivitySoftware& software) noexcept;
  // The process is another rank from now on, in the job's next attempt. `path`: where the file is
  // found as that rank's, too; empty: nowhere else.
  void become(int rank, int world_size, const std::string& path);

  void set_stack_signal(int signal) noexcept;  // this process answers it

  // From now on every span and call is an event too, in a file that lies at `path` and stays until
  // the end of the process. Throws: io.
  void trace_into(const std::string& path);
  // The file of events; null where there is none.
  TraceEventFile* events() const { return events_.load(std::memory_order_acquire); }
  // Called with how many steps there have been, by who tells them.
  static void set_step_hook(void (*hook)(int64_t steps)) { step_hook_ = hook; }
  // Called where a span begins and where it ends, in its thread: by who shows spans elsewhere.
  static void set_span_hooks(void (*begin)(const char* name), void (*end)()) {
    span_end_hook_ = end;
    span_begin_hook_ = begin;
  }
  int64_t unix_minus_monotonic_ns() const { return file_->header.unix_minus_monotonic_ns; }

  const std::string& path() const { return *path_.load(std::memory_order_acquire); }
  int world_size() const { return file_->header.world_size; }

 private:
  void set_path(const std::string& path);
  // The calling thread's record; null where there is none left.
  ActivityThread* own_record() noexcept;
  ActivityThread* claim_record(uint32_t thread) noexcept;
  void switch_category(uint32_t category, int64_t now) noexcept;
  uint32_t category_within(const ActivityThread& record, uint32_t depth) const noexcept;
  void tell_end(const ActivityThread& record, uint32_t depth) noexcept;

  static std::atomic<Activity*> current_;
  static std::atomic<void (*)(int64_t)> step_hook_;
  static std::atomic<void (*)(const char*)> span_begin_hook_;
  static std::atomic<void (*)()> span_end_hook_;

  // All paths that there have been: another thread may read an earlier one.
  std::vector<std::unique_ptr<const std::string>> paths_;
  std::atomic<const std::string*> path_ = nullptr;  // the last
  Fd fd_;                                           // locked as long as the process lives
  ActivityLayout* file_ = nullptr;
  uint32_t outside_ = 0;  // the category outside of all spans; the main thread's
  // A bit for each record that is nobody's. A thread that finds none touches nothing of the others.
  std::atomic<uint32_t> free_records_ = (uint32_t{1} << kActivityThreads) - 1;
  std::atomic<TraceEventFile*> events_ = nullptr;
  const uint64_t serial_;  // tells a thread's place here from that in an Activity before
};

// Opens the activity file of a rank that `muster run`, or a program that starts itself, has started
// (MUSTER_RUN_DIR, RANK), once; of another process of that rank, and where there is no run folder,
// none. What keeps it from being written is said once and is no error. Returns what Activity::get()
// does afterwards.
Activity* open_own_activity();

// Whether MUSTER_TRACE asks for a trace from the start. Warns, once, of a value that it does not
// know.
bool trace_is_asked();

// "RUN_DIR/activity/ATTEMPT/RANK".
std::string activity_path(const std::string& run_dir, int attempt, int rank);

}  // namespace muster
