// Everything that a handler uses has been made before the signal comes: buffers of a fixed size, an
// alternate stack, the loaded unwinder. The handler takes the stack, writes it to standard error
// line by line, collects the same lines as JSON, and writes the error file in the end. One thread
// reports; others that fault meanwhile wait for the process to end.
#include "muster/run/fatal_signal.h"

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
#include <ctime>
#include <utility>

#include "muster/base/absent_memory.h"
#include "muster/base/interrupted_at.h"
#include "muster/base/lookup.h"
#include "muster/base/signal_set.h"
#include "muster/run/stack_text.h"

namespace muster {

namespace {

// Their names, too: sigabbrev_np() is not declared safe in a handler.
constexpr std::pair<int, const char*> kFatal[] = {{SIGSEGV, "SIGSEGV"},
                                                  {SIGBUS, "SIGBUS"},
                                                  {SIGFPE, "SIGFPE"},
                                                  {SIGILL, "SIGILL"},
                                                  {SIGABRT, "SIGABRT"}};
constexpr size_t kSignalStack = size_t{128} << 10;

std::array<char, 64> g_name{};
std::atomic<pid_t> g_reporter = 0;  // the thread that reports; 0: none yet
std::atomic<int> g_signal = 0;      // the signal that it reports

void unblock(int signal) {
  const sigset_t only = signal_set({signal});
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
}

// The write_all() of fd.h throws, which a handler must not.
void write_all(int fd, const char* text, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(fd, text, bytes);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return;
    text += written;
    bytes -= written;
  }
}

// The error file's text, put together in memory of a fixed size. A line that does not fit is left
// out as a whole, so that the JSON stays well formed.
class ErrorText {
 public:
  void add(const char* text, size_t bytes) {
    const size_t room = text_.size() - size_;
    std::memcpy(text_.data() + size_, text, std::min(bytes, room));
    size_ += std::min(bytes, room);
  }
  void add(const char* text) { add(text, std::strlen(text)); }

  // Adds a line of the stack as a JSON string, without its line end.
  void add_line(const char* line, size_t bytes) {
    if (size_ + 2 * bytes + kClosing > text_.size())
      return;
    add(lines_++ == 0 ? "\"" : ",\"");
    for (size_t i = 0; i < bytes; ++i)
      add_character(line[i]);
    add("\"");
  }

  const char* data() const { return text_.data(); }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kClosing = 256;  // room that end_error() needs

  void add_character(char c) {
    if (c == '\n')
      return;
    if (static_cast<unsigned char>(c) < 0x20)
      c = '?';
    if (c == '"' || c == '\\')
      add("\\");
    add(&c, 1);
  }

  std::array<char, size_t{96} << 10> text_ = {};
  size_t size_ = 0;
  int lines_ = 0;
};

ErrorText g_error;
std::array<std::array<char, 4096>, 2> g_paths = {};
std::atomic<const char*> g_path = nullptr;  // one of g_paths; nullptr: no error file

void say(const char* text, size_t bytes) {
  write_all(STDERR_FILENO, text, bytes);
  g_error.add_line(text, bytes);
}

// The error file holds torchrun's form, with the stack's lines in "said".
void begin_error(const char* signal) {
  g_error.add("{\"message\":{\"message\":\"");
  g_error.add(signal);
  g_error.add("\",\"extraInfo\":{\"muster\":{\"signal\":\"");
  g_error.add(signal);
  g_error.add("\",\"said\":[");
}

// Closes the JSON and writes it, unless the rank has already written why it fails.
void end_error() {
  char digits[24];
  char* at = digits + sizeof(digits) - 1;
  *at = '\0';
  for (uint64_t now = ::time(nullptr); now > 0; now /= 10)
    *--at = "0123456789"[now % 10];
  g_error.add("]},\"timestamp\":\"");
  g_error.add(at);
  g_error.add("\"}}}\n");
  const char* const path = g_path;
  if (path == nullptr)
    return;
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0)
    return;
  write_all(fd, g_error.data(), g_error.size());
  ::close(fd);
}

// Says "[rank 1] error: SIGSEGV; its stack, …" in one line.
void say_head(const char* signal) {
  constexpr auto kRest = "; its stack, innermost call first (MUSTER_BACKTRACE=0: none):\n";
  std::array<char, 192> line;
  size_t size = 0;
  const char* const name = g_name.data();
  for (const char* const part : {name, signal, kRest}) {
    const size_t bytes = std::min(std::strlen(part), line.size() - size);
    std::memcpy(line.data() + size, part, bytes);
    size += bytes;
  }
  say(line.data(), size);
}

// Says the frames from the interrupted one outwards; the frames above it belong to the handler. If
// the interrupted instruction is not among the frames, it is said first, and then all frames.
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
    if (frame != from && *frame == frame[-1])
      continue;  // a function that calls itself
    const int number = static_cast<int>(frame - from);
    say(line, write_frame(number, *frame, frame == found, line, sizeof(line)));
  }
}

// Says why the address may have no memory, if that is known.
void say_absent_memory(int signal, const siginfo_t& info) {
  const char* const note = absent_memory.note;
  const bool is_fault = signal == SIGSEGV && info.si_code > 0;
  if (is_fault && note != nullptr &&
      reinterpret_cast<uintptr_t>(info.si_addr) < absent_memory.bytes)
    say(note, std::strlen(note));
}

// The handler of SIGALRM: ends the process by the signal that is being reported.
void end_by_signal(int) {
  unblock(g_signal);
  ::syscall(SYS_tgkill, ::getpid(), ::gettid(), g_signal.load());
}

// Only the dynamic linker knows the symbols' names, and its lock may be held by a thread that waits
// for this one. The process then ends after some seconds, without the rest of its stack.
void end_soon() {
  constexpr unsigned kSeconds = 5;
  struct sigaction action{};
  action.sa_handler = end_by_signal;
  ::sigaction(SIGALRM, &action, nullptr);
  unblock(SIGALRM);
  ::alarm(kSeconds);
}

// Everything in here is safe in a handler. The signal has its default again (SA_RESETHAND): a fault
// in here ends the process, and so does the fault that this returns to.
void on_fatal_signal(int signal, siginfo_t* info, void* context) {
  const int errno_before = errno;
  const pid_t self = ::gettid();
  pid_t nobody = 0;
  if (g_reporter.compare_exchange_strong(nobody, self)) {
    g_signal = signal;
    end_soon();
    const char* const name = lookup(kFatal, signal, "a signal");
    begin_error(name);
    say_head(name);
    say_absent_memory(signal, *info);
    say_stack(context);
    end_error();
  } else if (nobody != self) {
    for (;;)
      ::pause();  // until the other thread's signal ends the process
  }
  // A fault happens again after the return. A signal that was sent has to be sent again.
  if (info->si_code <= 0)
    ::syscall(SYS_tgkill, ::getpid(), self, signal);
  errno = errno_before;
}

// Gives the calling thread an alternate stack for handlers, unless it has one. A stack overflow
// leaves no room on the thread's own.
void give_signal_stack() {
  stack_t given{};
  if (::sigaltstack(nullptr, &given) != 0 || (given.ss_flags & SS_DISABLE) == 0)
    return;
  static std::array<char, kSignalStack> memory;
  given = {.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  ::sigaltstack(&given, nullptr);
}

}  // namespace

// There are two places for a path, because a handler may be reading the one in use.
void tell_fatal_signals_to(const std::string& error_file) {
  const bool fits = !error_file.empty() && error_file.size() < g_paths[0].size();
  auto& path = g_path == g_paths[0].data() ? g_paths[1] : g_paths[0];
  path.fill('\0');
  if (fits)
    std::ranges::copy(error_file, path.begin());
  g_path = fits ? path.data() : nullptr;
}

void show_fatal_signals(const std::string& name) {
  const std::string begin = "[" + name.substr(0, g_name.size() - 16) + "] error: ";
  g_name.fill('\0');
  std::ranges::copy(begin, g_name.begin());
  Stack::here();  // the first loads the unwinder, which a handler must not
  give_signal_stack();
  for (const auto& [signal, name_of_it] : kFatal) {
    struct sigaction action = action_of(signal);
    if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL)
      continue;
    action.sa_sigaction = on_fatal_signal;
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND);
    ::sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace muster
