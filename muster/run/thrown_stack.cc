// The library defines __cxa_throw, the function that the compiler calls for every `throw`; the
// dynamic linker finds it before the C++ library's own. It keeps the stack in a ring, and goes on
// to the original. Whoever reports an exception later looks its stack up by the exception's
// address.
#include "muster/run/thrown_stack.h"

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <typeinfo>

namespace muster {

namespace {

std::atomic<bool> g_keep = false;

// The last throws of all threads. An exception is known by its address and type; a later one may
// have the same address once the first is gone, so the newest throw counts.
class ThrownStacks {
 public:
  void add(const void* exception, const std::type_info& type, const Stack& stack) {
    if (!lock())
      return;
    stacks_[next_++ % stacks_.size()] = {.exception = exception, .type = &type, .stack = stack};
    mutex_.unlock();
  }

  Stack find(const void* exception, const std::type_info& type) {
    if (!lock())
      return {};
    Stack found;
    for (size_t back = 1; back <= std::min(next_, stacks_.size()); ++back) {
      const Thrown& thrown = stacks_[(next_ - back) % stacks_.size()];
      if (thrown.exception != exception || *thrown.type != type)
        continue;
      found = thrown.stack;
      break;
    }
    mutex_.unlock();
    return found;
  }

 private:
  struct Thrown {
    const void* exception = nullptr;
    const std::type_info* type = nullptr;
    Stack stack{};
  };

  // Gives up after a while: in a child that was forked while another thread had the lock, nobody
  // will ever release it.
  bool lock() {
    for (int tries = 0; tries < 1000; ++tries) {
      if (mutex_.try_lock())
        return true;
      ::sched_yield();
    }
    return false;
  }

  std::mutex mutex_;
  std::array<Thrown, 32> stacks_{};
  size_t next_ = 0;
};

// 32 stacks are enough for the threads that fail at the same time.
ThrownStacks& thrown_stacks() {
  static ThrownStacks stacks;
  return stacks;
}

using Throw = void (*)(void*, void*, void (*)(void*));

// Returns the C++ library's __cxa_throw, the next after this library's.
Throw original_throw() {
  static const auto found = reinterpret_cast<Throw>(::dlsym(RTLD_NEXT, "__cxa_throw"));
  return found;
}

}  // namespace

void keep_thrown_stacks(bool keep) {
  // The first stack loads the unwinder, and the first use makes the ring: neither is to happen
  // during a throw.
  if (keep) {
    Stack::here();
    thrown_stacks();
  }
  g_keep = keep;
}

Stack thrown_stack(const std::exception_ptr& error) {
  const void* exception = nullptr;
  static_assert(sizeof(error) == sizeof(exception));  // libstdc++'s holds the address alone
  std::memcpy(static_cast<void*>(&exception), static_cast<const void*>(&error), sizeof(exception));
  if (exception == nullptr)
    return {};
  return thrown_stacks().find(exception, *error.__cxa_exception_type());
}

}  // namespace muster

// The function has another name in C++, because compilers differ in how they declare __cxa_throw.
extern "C" [[noreturn]] void muster_cxa_throw(void* exception,
                                              void* type,
                                              void (*destroy)(void*)) __asm__("__cxa_throw");

void muster_cxa_throw(void* exception, void* type, void (*destroy)(void*)) {
  if (muster::g_keep.load(std::memory_order_relaxed)) {
    muster::Stack stack = muster::Stack::here();
    stack.drop_first();  // this one
    muster::thrown_stacks().add(exception, *static_cast<const std::type_info*>(type), stack);
  }
  if (const auto original = muster::original_throw())
    original(exception, type, destroy);
  std::terminate();
}
