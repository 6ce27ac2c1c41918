#include "muster/trace/activity.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/call_text.h"

namespace muster {

namespace {

std::atomic<uint64_t> g_serial = 0;

constexpr uint32_t kInherited = kActivityCategories;

template <class T>
void put(T& field, T value) {
  std::atomic_ref(field).store(value, std::memory_order_relaxed);
}
template <class T>
T value_of(T& field) {
  return std::atomic_ref(field).load(std::memory_order_relaxed);
}

// Between these two a record changes.
template <class Record>
void open_record(Record& record, uint64_t number) {
  put(record.tail, number);
  std::atomic_thread_fence(std::memory_order_release);
}
template <class Record>
void close_record(Record& record, uint64_t number) {
  std::atomic_ref(record.head).store(number, std::memory_order_release);
}

uint32_t own_thread() {
  return static_cast<uint32_t>(::syscall(SYS_gettid));
}

// Where the calling thread writes, in the Activity `serial`; given back when it ends.
struct ThreadPlace {
  uint64_t serial = 0;
  uint32_t thread = 0;
  ActivityThread* record = nullptr;  // of which there may be none left
  bool is_main = false;

  ~ThreadPlace() {
    // What is no longer mapped is not written to: an Activity of a process stays until its end.
    if (record != nullptr && Activity::get() != nullptr && serial == g_serial)
      std::atomic_ref(record->owner).store(0, std::memory_order_release);
  }
};

thread_local ThreadPlace t_place;

void begin_thread(ActivityThread& record, uint64_t number) {
  open_record(record, number);
  record.depth = 0;
  char name[sizeof(record.name)] = {};
  ::pthread_getname_np(::pthread_self(), name, sizeof(name));
  put_text(record.name, sizeof(record.name), name);
  close_record(record, number);
}

// 0 where the kernel does not tell.
int64_t pid_namespace() {
  struct stat status = {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? static_cast<int64_t>(status.st_ino) : 0;
}

// Behind the name, which may hold anything. 0 where the kernel does not tell.
int64_t own_start_ticks() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t behind_name = text.rfind(") ");
  if (behind_name == std::string::npos)
    return 0;
  constexpr size_t kStartTime = 19;
  const auto fields = split(std::string_view(text).substr(behind_name + 2), ' ');
  return fields.size() > kStartTime ? parse_int(fields[kStartTime]).value_or(0) : 0;
}

void fill_header(ActivityHeader& header, const ActivityOwner& owner) {
  header.bytes = sizeof(ActivityLayout);
  header.rank = owner.rank;
  header.world_size = owner.world_size;
  header.attempt = owner.attempt;
  header.main_thread = own_thread();
  header.pid = ::getpid();
  header.pid_namespace = pid_namespace();
  header.start_ticks = own_start_ticks();
  ::gethostname(header.host, sizeof(header.host) - 1);
  put_text(header.device, sizeof(header.device), owner.device.c_str());
  header.opened_ns = activity_now();
  header.unix_minus_monotonic_ns = nanoseconds_of(CLOCK_REALTIME) - header.opened_ns;
  header.category_since_ns = header.opened_ns;
  header.loss = std::numeric_limits<double>::quiet_NaN();
  header.version = kActivityVersion;
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header.magic, kActivityMagic, sizeof(kActivityMagic));  // last: now it is one
}

// The file has all of its blocks, so that a full disk is told here and not by SIGBUS at a write.
int open_file(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error)
    throw Error(ErrorCode::io,
                cat("activity: cannot make the folder of '", path, "': ", error.message()));
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0)
    fail_errno(cat("activity: cannot open '", path, "'"), errno);
  // A file system without locks has none to tell two writers apart.
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(fd);
    throw Error(ErrorCode::failed_precondition,
                cat("activity: expected '",
                    path,
                    "' for this process alone, got another that writes to it"));
  }
  if (const int failed = ::posix_fallocate(fd, 0, sizeof(ActivityLayout)); failed != 0) {
    ::close(fd);
    fail_errno(cat("activity: cannot make '", path, "' ", sizeof(ActivityLayout), " bytes long"),
               failed);
  }
  return fd;
}

}  // namespace

std::atomic<Activity*> Activity::current_ = nullptr;
std::atomic<void (*)(int64_t)> Activity::step_hook_ = nullptr;
std::atomic<void (*)(const char*)> Activity::span_begin_hook_ = nullptr;
std::atomic<void (*)()> Activity::span_end_hook_ = nullptr;

Activity::Activity(const std::string& path, const ActivityOwner& owner)
    : fd_(open_file(path)), serial_(++g_serial) {
  path_ = paths_.emplace_back(std::make_unique<const std::string>(path)).get();
  void* const memory =
      ::mmap(nullptr, sizeof(ActivityLayout), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) {
    const int why = errno;
    ::close(fd_);
    fail_errno(cat("activity: cannot map '", path, "'"), why);
  }
  std::memset(memory, 0, sizeof(ActivityLayout));  // what an earlier job has left there
  file_ = static_cast<ActivityLayout*>(memory);
  fill_header(file_->header, owner);
}

Activity::~Activity() {
  if (get() == this)
    set(nullptr);
  delete events();
  ::munmap(file_, sizeof(ActivityLayout));
  ::close(fd_);
}

int Activity::place() noexcept {
  ThreadPlace& here = t_place;
  if (here.serial != serial_) {
    here = {.serial = serial_, .thread = own_thread(), .record = nullptr};
    here.is_main = here.thread == file_->header.main_thread;
  }
  if (here.record == nullptr) {
    for (ActivityThread& record : file_->threads) {
      uint32_t nobody = 0;
      if (!std::atomic_ref(record.owner).compare_exchange_strong(nobody, here.thread))
        continue;
      here.record = &record;
      begin_thread(record, value_of(record.head) + 1);
      if (TraceEventFile* const traced = events())
        traced->add_thread(record.name, here.thread);
      break;
    }
  }
  return here.record == nullptr ? -1 : static_cast<int>(here.record - file_->threads);
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

Activity::Entered Activity::enter(const char* name, Category category, bool inherits) noexcept {
  const int at = place();
  if (at < 0)
    return {};
  ActivityThread& record = file_->threads[at];
  const uint32_t depth = record.depth;
  const int64_t now = activity_now();
  const uint64_t number = record.head + 1;
  open_record(record, number);
  if (depth < kActivityDepth) {
    ActivitySpan& span = record.spans[depth];
    put_text(span.name, sizeof(span.name), name);
    put(span.begin_ns, now);
    put(span.category, inherits ? kInherited : static_cast<uint32_t>(category));
    if (t_place.is_main)
      switch_category(category_within(record, depth + 1), now);
    if (const auto begin = span_begin_hook_.load(std::memory_order_relaxed))
      begin(name);
  }
  put(record.depth, depth + 1);
  close_record(record, number);
  return {.thread = &t_place, .depth = depth, .begin_ns = now};
}

// One that was left already, with another that it was within, is not there any more.
void Activity::leave(const Entered& span) noexcept {
  if (span.thread != &t_place || t_place.serial != serial_ || t_place.record == nullptr)
    return;
  ActivityThread& record = *t_place.record;
  const bool is_there =
      record.depth > span.depth &&
      (span.depth >= kActivityDepth || record.spans[span.depth].begin_ns == span.begin_ns);
  if (!is_there)
    return;
  const uint64_t number = record.head + 1;
  const uint32_t deepest = std::min<uint32_t>(record.depth, kActivityDepth);
  open_record(record, number);
  put(record.depth, span.depth);
  close_record(record, number);
  if (const auto end = span_end_hook_.load(std::memory_order_relaxed)) {
    for (uint32_t depth = deepest; depth > span.depth; --depth)
      end();
  }
  if (span.depth >= kActivityDepth)
    return;
  const uint32_t category = category_within(record, span.depth);
  TraceEventFile* const traced = events();
  const bool switches = t_place.is_main && category != file_->header.category;
  if (!switches && traced == nullptr)
    return;
  const int64_t now = activity_now();
  if (traced != nullptr) {
    traced->add_span(record.spans[span.depth].name,
                     category_within(record, span.depth + 1),
                     t_place.thread,
                     span.begin_ns,
                     now);
  }
  if (switches)
    switch_category(category, now);
}

void Activity::set_category_outside(Category category) noexcept {
  if (place() < 0 || !t_place.is_main)
    return;
  outside_ = static_cast<uint32_t>(category);
  switch_category(category_within(*t_place.record, t_place.record->depth), activity_now());
}

void Activity::switch_category(uint32_t category, int64_t now) noexcept {
  ActivityHeader& header = file_->header;
  if (category == header.category)
    return;
  int64_t& total = header.totals_ns[header.category];
  put(total, total + now - header.category_since_ns);
  put(header.category_since_ns, now);
  put(header.category, category);
}

std::array<int64_t, kActivityCategories> Activity::totals() const noexcept {
  ActivityHeader& header = file_->header;
  std::array<int64_t, kActivityCategories> totals = {};
  std::transform(
      std::begin(header.totals_ns), std::end(header.totals_ns), totals.begin(), [](int64_t& total) {
        return value_of(total);
      });
  totals[value_of(header.category)] += activity_now() - value_of(header.category_since_ns);
  return totals;
}

uint64_t Activity::begin_call(const CallFacts& facts) noexcept {
  const uint64_t number =
      std::atomic_ref(file_->header.calls).fetch_add(1, std::memory_order_relaxed) + 1;
  ActivityCall& call = file_->ring[(number - 1) % kActivityCalls];
  if (t_place.thread == 0)
    t_place.thread = own_thread();
  open_record(call, number);
  put(call.begin_ns, activity_now());
  put(call.end_ns, int64_t{0});
  put(call.sequence, facts.sequence);
  put(call.bytes, facts.bytes);
  put(call.peer, static_cast<int32_t>(facts.peer));
  put(call.tag, static_cast<int32_t>(facts.tag));
  put(call.state, static_cast<uint32_t>(CallState::under_way));
  put(call.thread, t_place.thread);
  put_text(call.group, sizeof(call.group), facts.group);
  put_text(call.operation, sizeof(call.operation), facts.operation);
  put_shape(call.what, sizeof(call.what), facts.type, facts.sizes, facts.dimensions);
  close_record(call, number);
  return number;
}

// One that came 1024 calls later may have its place.
void Activity::end_call(uint64_t number, CallState state) noexcept {
  ActivityCall& call = file_->ring[(number - 1) % kActivityCalls];
  TraceEventFile* const traced = events();
  if (number == 0 || value_of(call.head) != number) {
    if (number != 0 && traced != nullptr)
      traced->add_lost();  // so many have begun since then
    return;
  }
  const int64_t now = activity_now();
  put(call.end_ns, now);
  put(call.state, static_cast<uint32_t>(state));
  if (traced != nullptr)
    traced->add_call(call, now);
}

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

void Activity::note_loss(double loss) noexcept {
  put(file_->header.loss, std::isnan(loss) ? std::bit_cast<double>(kLossIsNan) : loss);
}

void Activity::set_software(const ActivitySoftware& software) noexcept {
  ActivityHeader& header = file_->header;
  put_text(header.libtorch, sizeof(header.libtorch), software.libtorch.c_str());
  put_text(header.backend, sizeof(header.backend), software.backend.c_str());
  put_text(header.device_name, sizeof(header.device_name), software.device_name.c_str());
}

void Activity::become(int rank, int world_size, const std::string& path) {
  if (!path.empty())
    path_ = paths_.emplace_back(std::make_unique<const std::string>(path)).get();
  put(file_->header.rank, static_cast<int32_t>(rank));
  put(file_->header.world_size, static_cast<int32_t>(world_size));
}

void Activity::set_stack_signal(int signal) noexcept {
  put(file_->header.stack_signal, static_cast<uint32_t>(signal));
}

void Activity::trace_into(const std::string& path) {
  if (events() != nullptr)
    return;
  auto events = std::make_unique<TraceEventFile>(path, file_->header);
  for (const ActivityThread& record : file_->threads) {
    if (record.owner != 0)
      events->add_thread(record.name, record.owner);
  }
  events_.store(events.release(), std::memory_order_release);
}

void Activity::close() noexcept {
  put(file_->header.closed_ns, activity_now());
}

}  // namespace muster
