#include "muster/supervise/console.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

const char* name_of(int fd) {
  return fd == STDOUT_FILENO   ? "standard output"
         : fd == STDERR_FILENO ? "standard error"
                               : "the console";
}

bool is_pipe(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

}  // namespace

Console::Console(EventLoop& loop, int fd, ConsoleOptions options)
    : loop_(loop),
      fd_(fd),
      writer_(fd),
      options_(options),
      waits_(!options.pipes_may_stall && is_pipe(fd)),
      last_progress_(Clock::now()) {}

Console::~Console() {
  loop_.cancel(watch_);
  loop_.cancel(stall_timer_);
}

bool Console::same_as(int fd) const {
  struct stat mine = {};
  struct stat other = {};
  return ::fstat(fd_, &mine) == 0 && ::fstat(fd, &other) == 0 && mine.st_dev == other.st_dev &&
         mine.st_ino == other.st_ino && mine.st_rdev == other.st_rdev;
}

void Console::write(std::string_view text) {
  if (closed_ || text.empty())
    return;
  if (stalled_ || (failing_ && !works_again()))
    return drop(text);
  if (dropped_bytes_ > 0) {
    buffer_ += note_of_dropped();
    dropped_bytes_ = 0;
  }
  if (size() == 0)
    last_progress_ = Clock::now();
  buffer_ += text;
  if (watch_ == 0)
    push();
  // Once full, it is so until push() says that there is room: streams that have paused wait for
  // that.
  full_ = full_ || (!closed_ && size() >= options_.buffer_bytes);
  if (full_ && !waits_ && stall_timer_ == 0)
    check_stall();
}

void Console::drop(std::string_view text) {
  dropped_bytes_ += text.size();
}

std::string Console::note_of_dropped() const {
  return cat("\n[muster] ",
             format_bytes(dropped_bytes_),
             " of output not shown here: ",
             why_dropped_,
             " (--tee 3 keeps it in files)\n");
}

// The ranks have done nothing wrong: what they print is read on, and missing here until there is
// room again.
void Console::fail(int why) {
  failing_ = true;
  why_dropped_ = std::strerror(why);
  dropped_bytes_ += size();
  buffer_.clear();
  written_ = 0;
  if (std::exchange(warned_, true))
    return;
  log(LogLevel::warn,
      cat("cannot write to ",
          name_of(fd_),
          ": ",
          why_dropped_,
          "; the ranks go on, and what they print is not shown until it works again"));
}

// Tries with the note of what is missing. Part of it may go out: the rest follows with the next
// text.
bool Console::works_again() {
  const std::string note = note_of_dropped();
  const long taken = writer_.write(note);
  if (taken < 0 && errno == EPIPE)
    close();
  if (taken <= 0)
    return false;
  failing_ = false;
  dropped_bytes_ = 0;
  why_dropped_ = "the reader had stopped";
  buffer_ = note.substr(static_cast<size_t>(taken));
  return true;
}

void Console::close() {
  closed_ = true;
  full_ = false;
  buffer_.clear();
  written_ = 0;
  loop_.cancel(std::exchange(watch_, 0));
  loop_.cancel(std::exchange(stall_timer_, 0));
  if (on_room)
    on_room();
}

// Writes until the reader takes no more.
void Console::push() {
  while (size() > 0) {
    const long taken = writer_.write(std::string_view(buffer_).substr(written_));
    if (taken > 0) {
      written_ += static_cast<size_t>(taken);
      last_progress_ = Clock::now();
    } else if (taken < 0 && errno == EINTR) {
      continue;
    } else if (taken < 0 && (errno == EPIPE || errno == EBADF)) {
      return close();
    } else if (taken < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      fail(errno);
    } else {
      break;
    }
  }
  if (written_ == buffer_.size() || written_ >= options_.buffer_bytes) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
  if (size() > 0) {
    if (watch_ == 0) {
      watch_ = loop_.watch_writable(writer_.fd(), [this] { push(); });
    }
  } else {
    loop_.cancel(std::exchange(watch_, 0));
    loop_.cancel(std::exchange(stall_timer_, 0));
  }
  if ((full_ || stalled_) && size() <= options_.buffer_bytes / 2) {
    full_ = stalled_ = false;
    if (on_room)
      on_room();
  }
}

// Gives up on a reader that has taken nothing of a full buffer for too long; else looks again
// later.
void Console::check_stall() {
  stall_timer_ = 0;
  if (!full_)
    return;
  const auto due = last_progress_ + options_.stalled_after;
  if (Clock::now() < due) {
    stall_timer_ = loop_.call_at(due, [this] { check_stall(); });
    return;
  }
  stalled_ = true;
  full_ = false;
  if (on_room)
    on_room();
}

void Console::flush(const std::function<bool()>& hurry) {
  last_progress_ = Clock::now();  // also where the reader had stopped: it may be back
  bool patient = waits_;
  for (;;) {
    if (size() == 0 && dropped_bytes_ > 0 && !failing_) {
      buffer_ = note_of_dropped();
      dropped_bytes_ = 0;
    }
    if (size() > 0)
      push();
    if (size() == 0 && (dropped_bytes_ == 0 || failing_))
      return;
    if (size() == 0)
      continue;
    if (patient && hurry && hurry()) {
      patient = false;
      last_progress_ = Clock::now();
    }
    const auto due = last_progress_ + options_.stalled_after;
    if (!patient && Clock::now() >= due)
      return give_up();
    loop_.run_once(patient ? std::nullopt : std::optional(due));
  }
}

void Console::give_up() {
  log(LogLevel::warn,
      cat(format_bytes(size() + dropped_bytes_),
          " of output not shown on ",
          name_of(fd_),
          ": the reader has stopped (--tee 3 keeps it in files)"));
  dropped_bytes_ = 0;
  buffer_.clear();
  written_ = 0;
}

}  // namespace muster
