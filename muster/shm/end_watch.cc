// The thread waits with epoll for descriptors that become readable: a pidfd when its process has
// ended, a connection when its other end has gone, and stop_ when the watch itself goes. Several
// watchers of one process share its pidfd. A source that has fired is dropped, with its watchers.
#include "muster/shm/end_watch.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"

namespace muster::shm {

namespace {

constexpr uint64_t kStop = 0;  // the number of the event that ends the thread
constexpr size_t kEventsAtOnce = 64;

bool is_readable(int fd) {
  pollfd poll{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, 0) > 0;
}

[[noreturn]] void fail_for_descriptors(const std::string& what) {
  throw unavailable("shared memory: expected a free file descriptor ",
                    what,
                    ", got none; raise the limit (ulimit -n), or use MUSTER_BACKEND=gloo");
}

}  // namespace

std::shared_ptr<EndWatch> EndWatch::of_this_process() {
  static std::mutex mutex;
  static std::weak_ptr<EndWatch> existing;
  const Lock lock(mutex);
  auto watch = existing.lock();
  if (!watch || watch->is_copy())
    existing = watch = std::make_shared<EndWatch>();
  return watch;
}

EndWatch::EndWatch()
    : owner_(::getpid()),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!events_.valid() || !stop_.valid())
    fail_for_descriptors("to see other ranks end");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kStop}};
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, stop_.get(), &event) != 0)
    fail_errno("shared memory: epoll_ctl", errno);
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { run(); });
}

// A copy's descriptors are the parent's too: what is written to them or removed there would be so
// for the parent.
EndWatch::~EndWatch() {
  if (is_copy()) {
    new std::thread(std::move(thread_));  // never joined: it is not in this process
    return;
  }
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

bool EndWatch::is_copy() const {
  return ::getpid() != owner_;
}

// The source that watches this process already. A source that is readable has ended, and its number
// may be another process's by now.
EndWatch::Sources::iterator EndWatch::running_process(pid_t pid) {
  return std::ranges::find_if(sources_, [pid](const auto& entry) {
    return entry.second.pid == pid && !is_readable(entry.second.fd);
  });
}

// on_end runs in this thread, without the lock, where the process has ended already.
std::optional<EndWatch::Watcher> EndWatch::watch_process(pid_t pid, OnEnd on_end) {
  UniqueLock lock(mutex_);
  const Watcher watcher = next_++;
  if (const auto known = running_process(pid); known != sources_.end()) {
    known->second.watchers.emplace(watcher, std::move(on_end));
    return watcher;
  }
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));  // there is no wrapper
  const int error = errno;
  if (process.valid()) {
    const int fd = process.get();
    Source source{.pid = pid, .process = std::move(process), .fd = fd};
    source.watchers.emplace(watcher, std::move(on_end));
    add(std::move(source), watcher);
    return watcher;
  }
  if (error == EMFILE || error == ENFILE)
    fail_for_descriptors(cat("to see process ", pid, " end"));
  if (error != ESRCH)
    return std::nullopt;
  lock.unlock();
  on_end();
  return watcher;
}

EndWatch::Watcher EndWatch::watch_connection(int fd, OnEnd on_end) {
  const Lock lock(mutex_);
  const Watcher watcher = next_++;
  Source source{.fd = fd};
  source.watchers.emplace(watcher, std::move(on_end));
  add(std::move(source), watcher);
  return watcher;
}

// The caller holds the lock. A source has the number of its first watcher.
void EndWatch::add(Source source, Watcher number) {
  const int fd = source.fd;
  sources_.emplace(number, std::move(source));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = number}};
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0)
    return;
  const int error = errno;
  sources_.erase(number);
  fail_errno("shared memory: cannot watch another rank", error);
}

void EndWatch::drop(Sources::iterator source) {
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, source->second.fd, nullptr);
  sources_.erase(source);
}

void EndWatch::forget(Watcher watcher) {
  if (is_copy())
    return;  // the thread may have held the lock when this process was forked
  const Lock lock(mutex_);
  const auto source = std::ranges::find_if(
      sources_, [watcher](const auto& entry) { return entry.second.watchers.contains(watcher); });
  if (source == sources_.end())
    return;
  source->second.watchers.erase(watcher);
  if (source->second.watchers.empty())
    drop(source);
}

// The lock is held while watchers are called, so that forget() returns only when none runs.
void EndWatch::run() {
  epoll_event events[kEventsAtOnce];
  for (;;) {
    const int count = ::epoll_wait(events_.get(), events, std::size(events), -1);
    const Lock lock(mutex_);
    for (const int i : indices_below(count)) {
      if (events[i].data.u64 == kStop)
        return;
      end(events[i].data.u64);
    }
  }
}

// An event may be of a source that was dropped since.
void EndWatch::end(uint64_t number) {
  const auto source = sources_.find(number);
  if (source == sources_.end())
    return;
  const auto watchers = std::move(source->second.watchers);
  drop(source);
  for (const auto& watcher : watchers)
    watcher.second();
}

}  // namespace muster::shm
