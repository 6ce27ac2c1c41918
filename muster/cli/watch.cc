// On a terminal each text is drawn over the one before, line by line, which flickers less than
// clearing the screen. Elsewhere the texts follow each other.
#include "muster/cli/watch.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/base/signal_set.h"
#include "muster/base/strings.h"
#include "muster/base/utf8.h"
#include "muster/supervise/live_lines.h"

namespace muster {
namespace {

// Keeps SIGINT back, so that it never ends the program between two lines. wait() takes it.
class Interrupts : NoCopy {
 public:
  Interrupts() { pthread_sigmask(SIG_BLOCK, &set_, &old_); }
  ~Interrupts() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }

  // Returns false if SIGINT came before the time was over.
  bool wait(milliseconds duration) const {
    const Deadline deadline(duration);
    while (true) {
      const auto left = deadline.left();
      const timespec time{.tv_sec = left.count() / 1000,
                          .tv_nsec = left.count() % 1000 * 1'000'000};
      if (sigtimedwait(&set_, nullptr, &time) == SIGINT)
        return false;
      // Another signal's handler may have ended the wait early.
      if (errno == EAGAIN && deadline.passed())
        return true;
    }
  }

 private:
  const sigset_t set_ = signal_set({SIGINT});
  sigset_t old_{};
};

}  // namespace

// Each line is cleared behind its text, and the rest of the screen behind the last one: nothing
// flickers. The cursor has the last row.
std::string drawn_at_top(int fd, const std::string& text) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0)
    size = {};
  const size_t rows = size.ws_row > 1 ? size.ws_row - 1U : 0;
  std::string out = "\x1b[H";
  for (const char c : fit_to_terminal(text, rows, size.ws_col)) {
    if (c == '\n')
      out += "\x1b[K";
    out += c;
  }
  return out + "\x1b[J";
}

// Columns are counted in characters of UTF-8, not in bytes.
std::string fit_to_terminal(const std::string& text, size_t rows, size_t columns) {
  std::string out;
  size_t row = 0;
  size_t column = 0;
  for (const char c : text) {
    if (rows > 0 && row == rows)
      return out;
    if (c == '\n') {
      out += c;
      ++row;
      column = 0;
      continue;
    }
    if (!continues_character(c))
      ++column;
    if (columns == 0 || column <= columns)
      out += c;
  }
  return out;
}

// The first text comes at once, and a wait stands before each of the others.
void watch(int fd, const std::function<std::string()>& make_text, const WatchOptions& options) {
  const bool in_place = draws_anew(fd);
  const Interrupts interrupts;
  for (int i = 0; options.count == 0 || i < options.count; ++i) {
    const bool is_first = i == 0;
    if (!is_first && !interrupts.wait(options.interval))
      break;
    const auto text = make_text();
    if (in_place) {
      write_all(fd, (is_first ? "\x1b[2J" : "") + drawn_at_top(fd, text));
    } else {
      write_all(fd, is_first ? text : options.separator + text);
    }
    if (options.goes_on && !options.goes_on())
      break;
  }
}

}  // namespace muster
