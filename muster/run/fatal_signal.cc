#include "muster/run/fatal_signal.h"

#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "muster/run/stack_text.h"

namespace muster {

namespace {

constexpr std::array kFatal = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr size_t kSignalStack = size_t{128} << 10;

std::array<char, 64> g_name = {};
std::atomic<pid_t> g_reporter = 0;  // the thread that tells
std::atomic<int> g_signal = 0;      // which it tells of

const char* short_name(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGILL:
      return "SIGILL";
    default:
      return "SIGABRT";
  }
}

void say(const char* text, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(STDERR_FILENO, text, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text += written;
    bytes -= static_cast<size_t>(written);
  }
}

void say(const char* text) {
  say(text, std::strlen(text));
}

void* interrupted_at(const void* context) {
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(registers.gregs[REG_RIP]);
#elif defined(__aarch64__)
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(registers.pc);
#else
  static_cast<void>(registers);
  return nullptr;
#endif
}

// From where the signal came on: what is above belongs to the handler. Without a place to begin at, all.
void say_stack(const void* context) {
  const Stack stack = Stack::here();
  void* const interrupted = interrupted_at(context);
  const auto* const begin = stack.frames.begin();
  const auto* const end = begin + stack.size;
  const auto* const found = std::find(begin, end, interrupted);
  const auto* const from = found == end ? begin : found;
  char line[1024];
  if (found == end && interrupted != nullptr)
    say(line, write_frame(0, interrupted, true, line, sizeof(line)));
  for (const auto* frame = from; frame != end; ++frame) {
    if (frame != from && *frame == frame[-1]) continue;  // a function that calls itself
    say(line, write_frame(static_cast<int>(frame - from), *frame, frame == found, line, sizeof(line)));
  }
}

// A symbol's name is the linker's to tell, whose lock may be held by a thread that waits for this one: then
// the process ends after a while with no more of its stack.
void end_by_signal(int) {
  sigset_t signal;
  ::sigemptyset(&signal);
  ::sigaddset(&signal, g_signal);
  ::pthread_sigmask(SIG_UNBLOCK, &signal, nullptr);
  ::syscall(SYS_tgkill, ::getpid(), ::syscall(SYS_gettid), g_signal.load());
}

void end_soon() {
  constexpr unsigned kSeconds = 5;
  struct sigaction action = {};
  action.sa_handler = end_by_signal;
  ::sigaction(SIGALRM, &action, nullptr);
  sigset_t alarm;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  ::alarm(kSeconds);
}

// Only what is safe in a handler. The signal's default is back (SA_RESETHAND): a fault in here ends the
// process, and so does the fault that this returns to.
void on_fatal_signal(int signal, siginfo_t* info, void* context) {
  const int errno_before = errno;
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  pid_t nobody = 0;
  if (g_reporter.compare_exchange_strong(nobody, self)) {
    g_signal = signal;
    end_soon();
    say(g_name.data());
    say(short_name(signal));
    say("; its stack, innermost call first (MUSTER_BACKTRACE=0: none):\n");
    say_stack(context);
  } else if (nobody != self) {
    for (;;) ::pause();  // until the other thread's signal ends the process
  }
  // What was sent does not come again by itself.
  if (info->si_code <= 0) ::syscall(SYS_tgkill, ::getpid(), self, signal);
  errno = errno_before;
}

void give_signal_stack() {
  stack_t given = {};
  if (::sigaltstack(nullptr, &given) != 0 || (given.ss_flags & SS_DISABLE) == 0) return;
  static std::array<char, kSignalStack> memory;
  given = {.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  ::sigaltstack(&given, nullptr);
}

}  // namespace

void show_fatal_signals(const std::string& name) {
  const std::string begin = "[" + name.substr(0, g_name.size() - 16) + "] error: ";
  g_name.fill('\0');
  std::copy(begin.begin(), begin.end(), g_name.begin());
  Stack::here();  // the first loads the unwinder, which a handler must not
  give_signal_stack();
  for (const int signal : kFatal) {
    struct sigaction action = {};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL) continue;
    action.sa_sigaction = on_fatal_signal;
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND);
    ::sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace muster
