// Where a signal has interrupted its thread, for the handlers that show a stack.
#pragma once

#include <ucontext.h>

namespace muster {

// The instruction, of the context that a handler gets: the frames before it are the handler's own.
// nullptr where the machine's registers are not known. Async-signal-safe.
inline void* interrupted_at(const void* context) {
  [[maybe_unused]] const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<void*>(registers.gregs[REG_RIP]);  // NOLINT(performance-no-int-to-ptr)
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(registers.pc);  // NOLINT(performance-no-int-to-ptr)
#else
  return nullptr;
#endif
}

}  // namespace muster
