// A counter goes up in each forked child, so that a mark made before the fork is not the child's
// own. The child also takes a reference to every backend that is alive, and never gives it back: it
// must not run their destructors.
#include "muster/comm/call/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <mutex>
#include <set>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

std::atomic<uint64_t> forks_before_process{0};  // one more in each forked child

// They are never destroyed: backends may outlive what the program's end destroys.
struct Backends {
  std::mutex mutex;
  std::set<c10d::Backend*> alive;
};
Backends& backends() {
  static Backends* const all = new Backends;
  return *all;
}

void before_fork() {
  backends().mutex.lock();
}
void after_fork() {
  backends().mutex.unlock();
}
void in_forked_child() {
  ++forks_before_process;
  for (c10d::Backend* const backend : backends().alive)
    c10::raw::intrusive_ptr::incref(backend);
  backends().mutex.unlock();
}

// The counter, which the handlers keep right from now on.
uint64_t watched_forks() {
  static const int registered = ::pthread_atfork(before_fork, after_fork, in_forked_child);
  if (registered != 0)
    fail_errno("process group: pthread_atfork", registered);
  return forks_before_process.load(std::memory_order_relaxed);
}

}  // namespace

ForkMark::ForkMark() : forks_(watched_forks()) {}

ForkGuard::ForkGuard(c10d::Backend& backend) : backend_(backend) {
  const Lock lock(backends().mutex);
  backends().alive.insert(&backend);
}

ForkGuard::~ForkGuard() {
  const Lock lock(backends().mutex);
  backends().alive.erase(&backend_);
}

bool ForkMark::in_child() const {
  return forks_before_process.load(std::memory_order_relaxed) != forks_;
}

void ForkMark::check(const char* operation) const {
  if (!in_child())
    return;
  throw failed_precondition(
      operation,
      ": expected the process that made the group, got a child that it has forked (process ",
      ::getpid(),
      "); leave communication to the parent, or make a group of the children's own");
}

}  // namespace muster
