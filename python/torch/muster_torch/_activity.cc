// The activity of this process (muster/trace/activity.h) is one, and the package muster has it: in
// libmuster.so.0. This is the same class over the functions of that library, as far as the backend
// needs it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "muster/base/strings.h"
#include "muster/c_api.h"
#include "muster/trace/activity.h"
#include "muster/trace/span.h"
#include "python/torch/muster_torch/_activity.h"

namespace muster {

namespace {

struct Library {
  decltype(&muster_free) free = nullptr;
  decltype(&muster_activity_open) open = nullptr;
  decltype(&muster_call_begin) call_begin = nullptr;
  decltype(&muster_call_end) call_end = nullptr;
  decltype(&muster_span_begin) span_begin = nullptr;
  decltype(&muster_span_end) span_end = nullptr;
  decltype(&muster_answers_stacks) answers_stacks = nullptr;
};
Library g_library;

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library) {
  return find(library, "muster_free", g_library.free) &&
         find(library, "muster_activity_open", g_library.open) &&
         find(library, "muster_call_begin", g_library.call_begin) &&
         find(library, "muster_call_end", g_library.call_end) &&
         find(library, "muster_span_begin", g_library.span_begin) &&
         find(library, "muster_span_end", g_library.span_end) &&
         find(library, "muster_answers_stacks", g_library.answers_stacks);
}

// What is read of it here alone: the header's facts.
ActivityLayout* map_to_read(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return nullptr;
  void* const memory = ::mmap(nullptr, sizeof(ActivityLayout), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<ActivityLayout*>(memory);
}

bool is_known(const ActivityLayout* file) {
  return file != nullptr && file->header.version == kActivityVersion;
}

}  // namespace

std::atomic<Activity*> Activity::current_ = nullptr;
std::atomic<void (*)(int64_t)> Activity::step_hook_ = nullptr;
std::atomic<void (*)(const char*)> Activity::span_begin_hook_ = nullptr;
std::atomic<void (*)()> Activity::span_end_hook_ = nullptr;

Activity::Activity(const std::string& path, const ActivityOwner&) : serial_(0) {
  path_ = paths_.emplace_back(std::make_unique<const std::string>(path)).get();
  file_ = map_to_read(path);
  if (is_known(file_))
    set(this);
}

Activity::~Activity() = default;

uint64_t Activity::begin_call(const CallFacts& facts) noexcept {
  const muster_call call = {.size = sizeof(muster_call),
                            .group = facts.group,
                            .operation = facts.operation,
                            .sequence = facts.sequence,
                            .type = facts.type,
                            .sizes = facts.sizes,
                            .dimensions = facts.dimensions,
                            .bytes = facts.bytes,
                            .peer = facts.peer,
                            .tag = facts.tag};
  return g_library.call_begin(&call);
}

void Activity::end_call(uint64_t number, CallState state) noexcept {
  g_library.call_end(number, state == CallState::failed ? 1 : 0);
}

void Activity::set_stack_signal(int) noexcept {
  g_library.answers_stacks();
}

Activity* open_own_activity() {
  return Activity::get();
}

std::string activity_path(const std::string& run_dir, int attempt, int rank) {
  return cat(run_dir, "/activity/", attempt, "/", rank);
}

Span::Span(const char* name, Category category) noexcept {
  if (Activity::get() == nullptr)
    return;
  muster_span span;
  g_library.span_begin(&span, name, static_cast<int>(category));
  thread_ = span.thread;
  depth_ = span.depth;
  begin_ns_ = span.begin_ns;
}

Span::~Span() {
  if (thread_ == nullptr)
    return;
  const muster_span span = {.thread = thread_, .begin_ns = begin_ns_, .depth = depth_, .unused = 0};
  g_library.span_end(&span);
}

const char* to_string(Category category) {
  constexpr const char* kNames[] = {"other", "compute", "communication", "data", "checkpoint"};
  return kNames[static_cast<size_t>(category)];
}

void use_activity_of(const std::string& library) {
  void* const loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  char* path = nullptr;
  if (loaded == nullptr || !find_all(loaded) || g_library.open(&path) != 0)
    return;
  if (path != nullptr && *path != 0)
    new Activity(path, {});  // never destroyed: threads write to it until the process has ended
  g_library.free(path);
}

}  // namespace muster
