// The bytes of an activity file: what a rank does now, its running totals, and a ring of its last
// collectives and messages. The rank writes it (activity.h) through a mapping, so that all of it is
// there when the rank is killed; others read it (read_activity.h) while it changes. Fixed sizes and
// offsets, little endian, times in nanoseconds of the host's monotonic clock. Who changes anything
// here raises kActivityVersion.
//
// A record that changes has its number twice: the writer sets `tail`, then the record, then `head`.
// Whoever finds them equal, and the same before and after copying the record, has it whole (but for
// a call that one thread writes down so slowly that others begin 1024 more meanwhile). A call's end
// is no part of that: a call has ended when both its `state` and its `end_ns` say so.
//
// The main thread's times have a check of their own: its totals are together the time from
// `opened_ns` until `present` began. Whoever finds them so has all of them of one moment.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace muster {

inline constexpr char kActivityMagic[8] = {'m', 'u', 's', 't', 'r', 'a', 'c', 't'};
inline constexpr uint32_t kActivityVersion = 3;
inline constexpr size_t kActivityThreads =
    16;  // that are in spans at one time; what more are in is not seen
inline constexpr size_t kActivityDepth = 8;  // spans within each other that are named
inline constexpr size_t kActivityCalls = 1024;
inline constexpr size_t kActivityCategories = 5;
inline constexpr uint64_t kLossIsNan =
    0x7ff8'0000'0000'0001;  // a NaN's bits, and no processor's own

struct ActivitySpan {
  char name[40];
  int64_t begin_ns;
  uint32_t category;  // kActivityCategories: that of what it is within
  uint32_t unused;
};

// On cache lines of its own, on every machine: threads write to theirs all the time.
struct alignas(128) ActivityThread {
  uint64_t head;
  uint32_t owner;  // the thread's id; 0: nobody's
  uint32_t depth;  // may be more than kActivityDepth
  char name[16];
  ActivitySpan spans[kActivityDepth];
  uint64_t tail;
};

enum class CallState : uint32_t { under_way, ended, failed };

struct ActivityCall {
  uint64_t head;  // 0: never used
  int64_t begin_ns;
  int64_t end_ns;  // 0: under way, whatever `state` says
  int64_t sequence;
  int64_t bytes;
  int32_t peer;  // of a message; -1: a collective
  int32_t tag;
  uint32_t state;  // CallState; under way, whatever `end_ns` says
  uint32_t thread;
  char group[32];
  char operation[24];
  char what[48];  // type and shape: "f32[1000]"
  uint64_t tail;
};

struct alignas(128) ActivityHeader {
  char magic[8];
  uint32_t version;
  uint32_t bytes;  // of the file
  int32_t rank;
  int32_t world_size;
  int32_t attempt;
  uint32_t main_thread;
  int64_t pid;
  int64_t pid_namespace;
  int64_t start_ticks;  // of the process, as /proc/PID/stat has it
  char host[64];
  char device[64];
  int64_t unix_minus_monotonic_ns;
  int64_t opened_ns;
  int64_t closed_ns;  // 0: open, or the rank has ended without a word
  int64_t step;
  int64_t step_ns;  // when `step` changed last
  int64_t steps;    // how often it did
  int64_t samples;
  double loss;  // NaN: nobody told; with the bits kLossIsNan: told as NaN
  uint32_t unused;
  uint32_t stack_signal;  // that makes the process write its stack; 0: none does
  int64_t present;        // the main thread's category now, and since when: present_word()
  int64_t totals_ns[kActivityCategories];  // of the main thread, without what it is in now
  uint64_t calls;                          // that have begun
  char libtorch[24];                       // its version; empty: nobody told, of the next two too
  char backend[16];
  char device_name[64];  // "NVIDIA H100 80GB HBM3"
};

struct ActivityLayout {
  ActivityHeader header;
  ActivityThread threads[kActivityThreads];
  ActivityCall ring[kActivityCalls];
};

static_assert(sizeof(ActivitySpan) == 56 && sizeof(ActivityThread) == 512 &&
              sizeof(ActivityCall) == 168 && sizeof(ActivityHeader) == 512 &&
              offsetof(ActivityLayout, ring) == 512 + 16 * 512);
static_assert(std::endian::native == std::endian::little, "activity files are little endian");
static_assert(std::atomic_ref<int64_t>::is_always_lock_free &&
                  std::atomic_ref<uint32_t>::is_always_lock_free &&
                  std::atomic_ref<double>::is_always_lock_free,
              "processes that share an activity file share no lock");

// A category and since when it is the main thread's, in one word: nobody sees one without the
// other. The times that fit are those of 36 years.
inline constexpr int64_t kCategoriesOfWord = 8;
static_assert(kActivityCategories <= kCategoriesOfWord);

constexpr int64_t present_word(int64_t since_ns, uint32_t category) {
  return since_ns * kCategoriesOfWord + category;
}
constexpr int64_t since_of(int64_t present) {
  return present >> 3;
}
constexpr uint32_t category_in(int64_t present) {
  return static_cast<uint32_t>(present & (kCategoriesOfWord - 1));
}

}  // namespace muster
