// How it works: events have numbers, and a number says where its event lies: in a chunk of the file
// that is mapped when its first event comes. A writer takes a number, writes the event and then its
// kind, which tells readers that it is whole.
#include "muster/trace/event_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <cstring>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/trace/call_text.h"
#include "muster/trace/mapped_file.h"

namespace muster {

namespace {

constexpr size_t kChunkBytes = kEventsOfChunk * sizeof(TraceEvent);

// Readers take the event for whole from now on.
void publish(TraceEvent& event, EventKind kind) {
  std::atomic_ref(event.kind).store(static_cast<uint32_t>(kind), std::memory_order_release);
}

Fd open_events(const std::string& path) {
  Fd file = open_mapped_file("trace", path, O_TRUNC);
  if (const int failed = ::posix_fallocate(file.get(), 0, sizeof(EventHeader)); failed != 0)
    fail_errno(failed, "trace: cannot make '", path, "' longer");
  return file;
}

// "f32[1000] #41 world", cut where there is no room.
void put_detail(TraceEvent& event, const ActivityCall& call) {
  char* at = event.detail;
  char* const end = event.detail + sizeof(event.detail);
  const auto add = [&](const char* text) {
    put_text(at, end - at, text);
    at += std::strlen(at);
  };
  add(call.what);
  if (call.peer < 0) {
    char number[24] = " #";
    *std::to_chars(number + 2, number + sizeof(number) - 1, call.sequence).ptr = '\0';
    add(number);
  }
  add(" ");
  add(call.group);
}

}  // namespace

// The magic comes last: with it the file is one.
TraceEventFile::TraceEventFile(const std::string& path, const ActivityHeader& activity)
    : fd_(open_events(path)) {
  header_ = map_file<EventHeader>("trace", fd_, path);
  header_->version = kEventVersion;
  header_->event_bytes = sizeof(TraceEvent);
  header_->rank = activity.rank;
  header_->world_size = activity.world_size;
  header_->pid = activity.pid;
  put_text(header_->host, activity.host);
  put_text(header_->device, activity.device);
  header_->unix_minus_monotonic_ns = activity.unix_minus_monotonic_ns;
  header_->host_uncertainty_ns = -1;
  header_->main_thread = activity.main_thread;
  std::memcpy(header_->magic, kEventMagic, sizeof(kEventMagic));
}

TraceEventFile::~TraceEventFile() {
  for (auto& chunk : chunks_) {
    if (TraceEvent* const events = chunk.load())
      ::munmap(events, kChunkBytes);
  }
  ::munmap(header_, sizeof(EventHeader));
}

// Readers tell of lost events, so that nobody takes the trace for whole.
void TraceEventFile::add_lost() noexcept {
  std::atomic_ref(header_->lost).fetch_add(1, std::memory_order_relaxed);
}

// The place of the next event. An event without a place is counted as lost.
TraceEvent* TraceEventFile::next() noexcept {
  const uint64_t number = count_.fetch_add(1, std::memory_order_relaxed);
  const size_t chunk = number / kEventsOfChunk;
  TraceEvent* events =
      chunk < kEventChunks ? chunks_[chunk].load(std::memory_order_acquire) : nullptr;
  if (events == nullptr)
    events = grow(chunk);
  if (events == nullptr) {
    add_lost();
    return nullptr;
  }
  return events + number % kEventsOfChunk;
}

// The file gets all blocks of the chunk, so that a full disk loses events and not the rank. A chunk
// that could not be had is asked for again by each event that belongs there.
TraceEvent* TraceEventFile::grow(size_t chunk) noexcept {
  if (chunk >= kEventChunks)
    return nullptr;
  const Lock lock(growing_);
  if (TraceEvent* const there = chunks_[chunk].load())
    return there;
  const off_t begin = sizeof(EventHeader) + chunk * kChunkBytes;
  if (::posix_fallocate(fd_.get(), begin, kChunkBytes) != 0)
    return nullptr;
  void* const memory =
      ::mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), begin);
  if (memory == MAP_FAILED)
    return nullptr;
  // The pages come too, all at once: one by one they would cost the training thread more than the
  // events do. A kernel before 5.14 cannot do this, and gives each as it is written to.
  constexpr int kPopulateForWriting = 23;  // MADV_POPULATE_WRITE, which older headers lack
  ::madvise(memory, kChunkBytes, kPopulateForWriting);
  auto* const events = static_cast<TraceEvent*>(memory);
  chunks_[chunk].store(events, std::memory_order_release);
  return events;
}

// A span is written when it ends, when both of its times are known.
void TraceEventFile::add_span(const char* name,
                              uint32_t category,
                              uint32_t thread,
                              int64_t begin_ns,
                              int64_t end_ns) noexcept {
  TraceEvent* const event = next();
  if (event == nullptr)
    return;
  event->begin_ns = begin_ns;
  event->end_ns = end_ns;
  event->category = category;
  event->thread = thread;
  put_text(event->name, name);
  publish(*event, EventKind::span);
}

// The facts are copied from the call's record in the ring.
void TraceEventFile::add_call(const ActivityCall& call, int64_t end_ns) noexcept {
  TraceEvent* const event = next();
  if (event == nullptr)
    return;
  event->begin_ns = call.begin_ns;
  event->end_ns = end_ns;
  event->bytes = call.bytes;
  event->thread = call.thread;
  put_text(event->name, call.operation);
  put_detail(*event, call);
  publish(*event, EventKind::call);
}

void TraceEventFile::add_thread(const char* name, uint32_t thread) noexcept {
  TraceEvent* const event = next();
  if (event == nullptr)
    return;
  event->thread = thread;
  put_text(event->name, name);
  publish(*event, EventKind::thread_name);
}

void TraceEventFile::correct_clock(int64_t correction_ns, int64_t uncertainty_ns) noexcept {
  header_->host_correction_ns = correction_ns;
  header_->host_uncertainty_ns = uncertainty_ns;
}

std::string event_path(const std::string& run_dir, int attempt, int rank) {
  return cat(run_dir, "/trace/", attempt, "/", rank);
}

}  // namespace muster
