// Terminals have a second screen for programs like this, and show the first one again afterwards.
// Signals are read as data (signalfd), so that the terminal is given back before any of them ends
// or stops the program.
#include "muster/cli/live_screen.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/signal_set.h"
#include "muster/cli/watch.h"

namespace muster {
namespace {

constexpr auto kOtherScreen = "\x1b[?1049h\x1b[?25l\x1b[2J";  // and no cursor
constexpr auto kOwnScreen = "\x1b[?25h\x1b[?1049l";

// poll() takes an int of milliseconds.
constexpr milliseconds kLongestPoll{60'000};

}  // namespace

// Signals are blocked before the terminal is changed, so that none comes in between: those by which
// a user or the system ends or stops a program in the foreground, and the one that tells of another
// window size.
LiveScreen::LiveScreen(int fd) : fd_(fd), has_keys_(::isatty(STDIN_FILENO) == 1) {
  const sigset_t mine = signal_set({SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH});
  pthread_sigmask(SIG_BLOCK, &mine, &before_);
  signals_ = Fd(::signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) {
    const int problem = errno;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    fail_errno("cannot wait for signals", problem);
  }
  if (has_keys_)
    ::tcgetattr(STDIN_FILENO, &keys_before_);
  take_terminal();
}

// Signals that came meanwhile take effect only now.
LiveScreen::~LiveScreen() {
  give_terminal_back();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

// Keys come at once and are not echoed.
void LiveScreen::take_terminal() {
  if (has_keys_) {
    termios keys = keys_before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  write_all(fd_, kOtherScreen);
}

// Called in the destructor too, so it throws nothing.
void LiveScreen::give_terminal_back() {
  try {
    write_all(fd_, kOwnScreen);
  } catch (const Error&) {
    // The terminal has gone.
  }
  if (has_keys_)
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys_before_);
}

void LiveScreen::show(const std::string& text) {
  write_all(fd_, drawn_at_top(fd_, text));
}

// Returns false if one of the signals that have come ends the program.
bool LiveScreen::take_signal() {
  signalfd_siginfo got{};
  constexpr ssize_t kWhole = sizeof(got);
  while (::read(signals_.get(), &got, sizeof(got)) == kWhole) {
    if (got.ssi_signo == SIGWINCH) {
      again_ = true;
    } else if (got.ssi_signo == SIGTSTP) {
      // After Ctrl-Z the shell has its screen, until it continues this program.
      give_terminal_back();
      ::raise(SIGSTOP);
      take_terminal();
      again_ = true;
    } else {
      return false;
    }
  }
  return true;
}

// Returns false if the user wants to end, or the terminal has gone. A blank or Enter draws at once.
bool LiveScreen::take_keys() {
  char keys[64];
  const ssize_t got = ::read(STDIN_FILENO, keys, sizeof(keys));
  if (got == 0)
    return false;
  for (ssize_t i = 0; i < got; ++i) {
    if (is_one_of(keys[i], 'q', 'Q'))
      return false;
    if (is_one_of(keys[i], ' ', '\n'))
      again_ = true;
  }
  return true;
}

// poll() waits for signals and keys at once; a time beyond its range is waited for in parts.
bool LiveScreen::wait(milliseconds duration) {
  const Deadline deadline(duration);
  while (!deadline.passed() && !std::exchange(again_, false)) {
    pollfd watched[] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                        {.fd = has_keys_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
    const auto longest = std::min(kLongestPoll, deadline.left());
    const int ready = ::poll(watched, 2, static_cast<int>(longest.count()));
    if (ready < 0 && errno != EINTR)
      fail_errno("cannot wait for keys", errno);
    if (ready <= 0)
      continue;
    if (watched[0].revents != 0 && !take_signal())
      return false;
    if (watched[1].revents != 0 && !take_keys())
      return false;
  }
  return true;
}

}  // namespace muster
