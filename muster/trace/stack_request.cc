// How it works: a signal handler writes the addresses of its thread's frames into a file. It may
// interrupt anything, so it takes no lock and allocates nothing: the path is ready, the unwinder is
// loaded before, and the text is made on its stack.
#include "muster/trace/stack_request.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/interrupted_at.h"

namespace muster {

namespace {

constexpr int kOfRealTimeSignals = 9;  // counted from the first; few programs use that one
constexpr int kMostFrames = 64;

std::atomic<const std::string*> g_stack_path = nullptr;

// Writes "0x12ab" and a line's end, and returns the place behind it. Async-signal-safe.
char* put_hex(char* at, uint64_t number) {
  char digits[16];
  int count = 0;
  do
    digits[count++] = "0123456789abcdef"[number % 16];
  while ((number /= 16) != 0);
  *at++ = '0';
  *at++ = 'x';
  while (count > 0)
    *at++ = digits[--count];
  *at++ = '\n';
  return at;
}

// Only addresses are written: their names are behind the linker's lock, which another thread may
// hold while it waits for this one. The asker has the same program and looks them up in its own.
void on_stack_request(int, siginfo_t*, void* context) {
  const int errno_before = errno;
  std::array<void*, kMostFrames> frames;
  const int size = ::backtrace(frames.data(), kMostFrames);
  void* const* const end = frames.data() + size;
  void* const* const interrupted =
      std::find<void* const*>(frames.data(), end, interrupted_at(context));
  char text[kMostFrames * 20 + 32];
  char* at = put_hex(text, ::syscall(SYS_gettid));
  const bool found = interrupted != end;
  for (void* const* frame = found ? interrupted : frames.data(); frame != end; ++frame)
    at = put_hex(at, reinterpret_cast<uint64_t>(*frame));
  std::memcpy(at, "end\n", 4);
  at += 4;
  const int file = ::open(g_stack_path.load()->c_str(),
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                          0644);
  if (file >= 0) {
    (void)!::write(file, text, at - text);
    ::close(file);
  }
  errno = errno_before;
}

}  // namespace

int stack_signal() {
  return SIGRTMIN + kOfRealTimeSignals;
}

std::string stack_path(const std::string& activity_path) {
  return activity_path + ".stack";
}

// Earlier paths are kept, as the handler may be running.
void answer_stack_requests_at(const std::string& activity_path) {
  // Never destroyed: a handler may read any of them.
  static auto& paths = *new std::vector<std::unique_ptr<const std::string>>;
  paths.push_back(std::make_unique<const std::string>(stack_path(activity_path)));
  ::unlink(paths.back()->c_str());  // an earlier job's
  g_stack_path = paths.back().get();
}

// A program that uses the signal itself keeps it.
void answer_stack_requests(Activity& activity) {
  struct sigaction action{};
  if (::sigaction(stack_signal(), nullptr, &action) != 0)
    return;
  if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL)
    return;
  answer_stack_requests_at(activity.path());
  void* first = nullptr;
  ::backtrace(&first, 1);  // the first call loads the unwinder, which a handler must not
  action.sa_sigaction = on_stack_request;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(stack_signal(), &action, nullptr) == 0)
    activity.set_stack_signal(stack_signal());
}

}  // namespace muster
