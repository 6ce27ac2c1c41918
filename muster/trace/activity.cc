// How it works: the file is mapped and every thread writes its own record, so that nobody waits for
// anybody; a thread claims a record with its first span and gives it back at its end. A record that
// changes has its number twice (activity_layout.h), by which readers see whether they have it
// whole. The totals are the main thread's: each change of its category adds the time since the
// last, and then says since when the new one is.
#include "muster/trace/activity.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "muster/base/to_underlying.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/activity_file.h"
#include "muster/trace/activity_record.h"
#include "muster/trace/activity_times.h"
#include "muster/trace/call_text.h"
#include "muster/trace/mapped_file.h"

namespace muster {

namespace {

std::atomic<uint64_t> g_serial = 0;

constexpr uint32_t kInherited = kActivityCategories;

// The calling thread's record in the Activity `serial`; given back when the thread ends.
struct ThreadPlace {
  uint64_t serial = 0;
  uint32_t thread = 0;
  ActivityThread* record = nullptr;  // null when there was none left
  bool is_main = false;

  ~ThreadPlace() {
    // A record that is no longer mapped must not be written to. The newest Activity stays until the
    // end of the process.
    Activity* const activity = Activity::get();
    const bool is_mapped = activity != nullptr && serial == g_serial;
    if (record != nullptr && is_mapped)
      activity->give_back(*record);
  }
};

thread_local ThreadPlace t_place;

// The record is the calling thread's from now on, in no span yet.
void begin_thread(ActivityThread& record, uint32_t thread) {
  char name[sizeof(record.name)] = {};
  ::pthread_getname_np(::pthread_self(), name, sizeof(name));
  const RecordChange change(record);
  put(record.owner, thread);
  put(record.depth, 0);
  put_text(record.name, name);
}

// A span that was left already, with another that it was within, is not there any more.
bool is_in_span(const ActivityThread& record, const Activity::Entered& span) {
  if (record.depth <= span.depth)
    return false;
  return span.depth >= kActivityDepth || record.spans[span.depth].begin_ns == span.begin_ns;
}

}  // namespace

std::atomic<Activity*> Activity::current_ = nullptr;
std::atomic<void (*)(int64_t)> Activity::step_hook_ = nullptr;
std::atomic<void (*)(const char*)> Activity::span_begin_hook_ = nullptr;
std::atomic<void (*)()> Activity::span_end_hook_ = nullptr;

// The file of an earlier job is taken over, unless its process still lives.
Activity::Activity(const std::string& path, const ActivityOwner& owner)
    : fd_(open_activity_file(path)), serial_(++g_serial) {
  set_path(path);
  file_ = map_file<ActivityLayout>("activity", fd_, path);
  std::memset(file_, 0, sizeof(ActivityLayout));  // an earlier job may have left something there
  fill_header(file_->header, owner);
}

Activity::~Activity() {
  if (get() == this)
    set(nullptr);
  delete events();
  ::munmap(file_, sizeof(ActivityLayout));
}

void Activity::set_path(const std::string& path) {
  path_ = paths_.emplace_back(std::make_unique<const std::string>(path)).get();
}

// The thread takes the first record that is nobody's, with all that its last owner wrote there.
ActivityThread* Activity::claim_record(uint32_t thread) noexcept {
  uint32_t free = free_records_.load(std::memory_order_relaxed);
  while (free != 0) {
    const uint32_t without_first = free & (free - 1);
    if (!free_records_.compare_exchange_weak(free, without_first, std::memory_order_acquire))
      continue;
    ActivityThread& record = file_->threads[std::countr_zero(free)];
    begin_thread(record, thread);
    if (TraceEventFile* const traced = events())
      traced->add_thread(record.name, thread);
    return &record;
  }
  return nullptr;
}

void Activity::give_back(ActivityThread& record) noexcept {
  put(record.owner, 0);
  const uint32_t place = &record - file_->threads;
  free_records_.fetch_or(uint32_t{1} << place, std::memory_order_release);
}

// A thread that found no record free asks again with its next span.
ActivityThread* Activity::own_record() noexcept {
  ThreadPlace& here = t_place;
  if (here.serial != serial_) {
    here = {.serial = serial_, .thread = own_thread(), .record = nullptr};
    here.is_main = here.thread == file_->header.main_thread;
  }
  if (here.record == nullptr)
    here.record = claim_record(here.thread);
  return here.record;
}

// A span that inherits has no category of its own, so that what is outside of all can change under
// it.
uint32_t Activity::category_within(const ActivityThread& record, uint32_t depth) const noexcept {
  for (uint32_t i = std::min<uint32_t>(depth, kActivityDepth); i > 0; --i) {
    if (record.spans[i - 1].category != kInherited)
      return record.spans[i - 1].category;
  }
  return outside_;
}

// Spans deeper than the record has room for are counted and not named.
Activity::Entered Activity::enter(const char* name, Category category, bool inherits) noexcept {
  ActivityThread* const own = own_record();
  if (own == nullptr)
    return {};
  ActivityThread& record = *own;
  const uint32_t depth = record.depth;
  const bool is_named = depth < kActivityDepth;
  const int64_t now = activity_now();
  {
    const RecordChange change(record);
    if (is_named) {
      ActivitySpan& span = record.spans[depth];
      put_text(span.name, name);
      put(span.begin_ns, now);
      put(span.category, inherits ? kInherited : to_underlying(category));
      if (t_place.is_main)
        switch_category(category_within(record, depth + 1), now);
    }
    put(record.depth, depth + 1);
  }
  const auto begin = span_begin_hook_.load(std::memory_order_relaxed);
  if (begin != nullptr && is_named)
    begin(name);
  return {.thread = &t_place, .depth = depth, .begin_ns = now};
}

// Spans within this one end with it, so that the hooks are called for each of them.
void Activity::leave(const Entered& span) noexcept {
  const bool is_of_this_thread = span.thread == &t_place && t_place.serial == serial_;
  if (!is_of_this_thread || t_place.record == nullptr || !is_in_span(*t_place.record, span))
    return;
  ActivityThread& record = *t_place.record;
  const uint32_t deepest = std::min<uint32_t>(record.depth, kActivityDepth);
  {
    const RecordChange change(record);
    put(record.depth, span.depth);
  }
  if (const auto end = span_end_hook_.load(std::memory_order_relaxed)) {
    for (uint32_t depth = deepest; depth > span.depth; --depth)
      end();
  }
  if (span.depth < kActivityDepth)
    tell_end(record, span.depth);
}

// The span at this depth becomes an event, and the main thread's time is that of what is around it.
void Activity::tell_end(const ActivityThread& record, uint32_t depth) noexcept {
  const uint32_t category = category_within(record, depth);
  TraceEventFile* const traced = events();
  const bool switches = t_place.is_main && category != category_in(value_of(file_->header.present));
  if (!switches && traced == nullptr)
    return;
  const int64_t now = activity_now();
  if (traced != nullptr) {
    const ActivitySpan& span = record.spans[depth];
    traced->add_span(
        span.name, category_within(record, depth + 1), t_place.thread, span.begin_ns, now);
  }
  if (switches)
    switch_category(category, now);
}

void Activity::set_category_outside(Category category) noexcept {
  const ActivityThread* const record = own_record();
  if (record == nullptr || !t_place.is_main)
    return;
  outside_ = to_underlying(category);
  switch_category(category_within(*record, record->depth), activity_now());
}

// The time since the last change belongs to the category before.
void Activity::switch_category(uint32_t category, int64_t now) noexcept {
  ActivityHeader& header = file_->header;
  const int64_t present = value_of(header.present);
  if (category == category_in(present))
    return;
  int64_t& total = header.totals_ns[category_in(present)];
  put(total, value_of(total) + now - since_of(present));
  std::atomic_ref(header.present).store(present_word(now, category), std::memory_order_release);
}

// Another thread may look between the main thread's two stores, which lie a nanosecond apart.
std::array<int64_t, kActivityCategories> Activity::totals() const noexcept {
  constexpr int kLooks = 100;
  ActivityTimes times = ActivityTimes::in(file_->header);
  for (int look = 1; look < kLooks && !times.is_of_one_moment; ++look)
    times = ActivityTimes::in(file_->header);
  times.totals_ns[times.category] += activity_now() - times.since_ns;
  return times.totals_ns;
}

// Any thread may begin a call: numbers are given out, and each has its place in the ring.
uint64_t Activity::begin_call(const CallFacts& facts) noexcept {
  const uint64_t number =
      std::atomic_ref(file_->header.calls).fetch_add(1, std::memory_order_relaxed) + 1;
  ActivityCall& call = file_->ring[(number - 1) % kActivityCalls];
  if (t_place.thread == 0)
    t_place.thread = own_thread();
  const RecordChange change(call, number);
  put(call.begin_ns, activity_now());
  put(call.end_ns, 0);
  put(call.sequence, facts.sequence);
  put(call.bytes, facts.bytes);
  put(call.peer, facts.peer);
  put(call.tag, facts.tag);
  put(call.state, to_underlying(CallState::under_way));
  put(call.thread, t_place.thread);
  put_text(call.group, facts.group);
  put_text(call.operation, facts.operation);
  put_shape(call.what, sizeof(call.what), facts.type, facts.sizes, facts.dimensions);
  return number;
}

// A call that began 1024 calls later may have its place in the ring; then its end is lost.
void Activity::end_call(uint64_t number, CallState state) noexcept {
  if (number == 0)
    return;
  ActivityCall& call = file_->ring[(number - 1) % kActivityCalls];
  TraceEventFile* const traced = events();
  if (value_of(call.head) != number) {
    if (traced != nullptr)
      traced->add_lost();
    return;
  }
  const int64_t now = activity_now();
  put(call.state, to_underlying(state));
  std::atomic_ref(call.end_ns).store(now, std::memory_order_release);
  if (traced != nullptr)
    traced->add_call(call, now);
}

// The hook gets the number of steps, which may differ from the step's own number.
void Activity::note_step(int64_t step) noexcept {
  ActivityHeader& header = file_->header;
  put(header.step, step);
  put(header.step_ns, activity_now());
  put(header.steps, header.steps + 1);
  if (const auto hook = step_hook_.load(std::memory_order_relaxed))
    hook(header.steps);
}

void Activity::note_samples(int64_t more) noexcept {
  std::atomic_ref(file_->header.samples).fetch_add(more, std::memory_order_relaxed);
}

// NaN says that nobody told a loss, so a loss that is NaN has bits of its own.
void Activity::note_loss(double loss) noexcept {
  put(file_->header.loss, std::isnan(loss) ? std::bit_cast<double>(kLossIsNan) : loss);
}

void Activity::set_software(const ActivitySoftware& software) noexcept {
  ActivityHeader& header = file_->header;
  put_text(header.libtorch, software.libtorch.c_str());
  put_text(header.backend, software.backend.c_str());
  put_text(header.device_name, software.device_name.c_str());
}

// Readers that know the earlier path still find the file there.
void Activity::become(int rank, int world_size, const std::string& path) {
  if (!path.empty())
    set_path(path);
  put(file_->header.rank, rank);
  put(file_->header.world_size, world_size);
}

void Activity::set_stack_signal(int signal) noexcept {
  put(file_->header.stack_signal, signal);
}

// Threads that have a record already are named first, as they claim none again.
void Activity::trace_into(const std::string& path) {
  if (events() != nullptr)
    return;
  auto events = std::make_unique<TraceEventFile>(path, file_->header);
  for (ActivityThread& record : file_->threads) {
    if (const uint32_t owner = value_of(record.owner); owner != 0)
      events->add_thread(record.name, owner);
  }
  events_.store(events.release(), std::memory_order_release);
}

void Activity::close() noexcept {
  put(file_->header.closed_ns, activity_now());
}

}  // namespace muster
