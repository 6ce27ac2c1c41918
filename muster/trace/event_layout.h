// The bytes of a rank's file of events, which `--trace` asks for: every span and collective of the
// rank, as it ended. The rank writes it through a mapping that grows (event_file.h); the launcher
// makes one trace of all ranks' (merge_trace.h). Who changes anything here raises kEventVersion.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace muster {

inline constexpr char kEventMagic[8] = {'m', 'u', 's', 't', 'e', 'v', 't', 's'};
inline constexpr uint32_t kEventVersion = 2;
inline constexpr size_t kEventsOfChunk = 32768;  // as many as the file grows by
inline constexpr size_t kEventChunks = 256;      // 1.1 GB; what comes after is counted

enum class EventKind : uint32_t { none, span, call, thread_name };

struct TraceEvent {
  int64_t begin_ns;
  int64_t end_ns;
  int64_t bytes;
  uint32_t kind;  // EventKind; written last, so that what has one is whole
  uint32_t category;
  uint32_t thread;
  uint32_t unused;
  char name[40];
  char detail[56];  // of a call: "f32[1000] #41 world"
};

struct EventHeader {
  char magic[8];
  uint32_t version;
  uint32_t event_bytes;
  int32_t rank;
  int32_t world_size;
  int64_t pid;
  char host[64];
  char device[64];
  int64_t unix_minus_monotonic_ns;
  int64_t host_correction_ns;   // of this host's time of day to rank 0's
  int64_t host_uncertainty_ns;  // of that; -1: nobody has measured
  int64_t lost;                 // events that there was no room for
  uint32_t main_thread;
  uint32_t unused[7];
  char filler[65536 - 224];  // what follows is mapped: pages have up to 64 KiB
};

static_assert(std::endian::native == std::endian::little, "files of events are little endian");
static_assert(std::atomic_ref<uint32_t>::is_always_lock_free &&
                  std::atomic_ref<int64_t>::is_always_lock_free,
              "processes that share a file of events share no lock");
static_assert(sizeof(TraceEvent) == 136 && sizeof(EventHeader) == 65536 &&
              kEventsOfChunk * sizeof(TraceEvent) % 65536 == 0);

}  // namespace muster
