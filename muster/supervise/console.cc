// How it works: write() appends to a buffer and push() gives the reader as much of it as it takes;
// the loop calls push() again when there is room. A full buffer makes the streams pause (`full_`)
// until it is half empty. A reader that takes nothing for too long is given up (`stalled_`), and a
// disk that is full is tried again with each text (`failing_`): in both cases text is dropped and
// counted, and a note tells of it as soon as something can be written.
#include "muster/supervise/console.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

constexpr auto kReaderStopped = "the reader had stopped";

constexpr std::pair<int, const char*> kNames[] = {{STDOUT_FILENO, "standard output"},
                                                  {STDERR_FILENO, "standard error"}};

const char* name_of(int fd) {
  return lookup(kNames, fd, "the console");
}

bool is_pipe(int fd) {
  struct stat info{};
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
  struct stat mine{};
  struct stat other{};
  if (::fstat(fd_, &mine) != 0 || ::fstat(fd, &other) != 0)
    return false;
  return std::tie(mine.st_dev, mine.st_ino, mine.st_rdev) ==
         std::tie(other.st_dev, other.st_ino, other.st_rdev);
}

void Console::write(std::string_view text) {
  if (closed_ || text.empty())
    return;
  if (stalled_ || (failing_ && !works_again())) {
    dropped_bytes_ += text.size();
    return;
  }
  if (dropped_bytes_ > 0)
    add_note_of_dropped();
  if (size() == 0)
    last_progress_ = Clock::now();
  buffer_ += text;
  if (watch_ == 0)
    push();
  // Once full, it is so until push() says that there is room: streams that have paused wait for
  // that.
  const bool has_no_room = !closed_ && size() >= options_.buffer_bytes;
  full_ = full_ || has_no_room;
  if (full_ && !waits_ && stall_timer_ == 0)
    check_stall();
}

std::string Console::note_of_dropped() const {
  return cat("\n[muster] ",
             format_bytes(dropped_bytes_),
             " of output not shown here: ",
             why_dropped_,
             " (--tee 3 keeps it in files)\n");
}

void Console::add_note_of_dropped() {
  buffer_ += note_of_dropped();
  dropped_bytes_ = 0;
}

void Console::tell_of_room() const {
  if (on_room)
    on_room();
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
  log_warning("cannot write to ",
              name_of(fd_),
              ": ",
              why_dropped_,
              "; the ranks go on, and what they print is not shown until it works again");
}

// The note of what is missing is the first thing to try. If a part of it goes out, the rest follows
// with the next text.
bool Console::works_again() {
  const auto note = note_of_dropped();
  const long taken = writer_.write(note);
  if (taken < 0 && errno == EPIPE)
    close();
  if (taken <= 0)
    return false;
  failing_ = false;
  dropped_bytes_ = 0;
  why_dropped_ = kReaderStopped;
  buffer_ = note.substr(taken);
  return true;
}

void Console::close() {
  closed_ = true;
  full_ = false;
  buffer_.clear();
  written_ = 0;
  loop_.cancel(watch_);
  loop_.cancel(stall_timer_);
  tell_of_room();
}

// One write. True when it is worth trying again at once.
bool Console::write_some() {
  const long taken = writer_.write(std::string_view(buffer_).substr(written_));
  if (taken > 0) {
    written_ += taken;
    last_progress_ = Clock::now();
    return true;
  }
  if (taken == 0)
    return false;
  const int error = errno;
  if (is_one_of(error, EPIPE, EBADF))
    close();
  else if (!is_one_of(error, EINTR, EAGAIN))
    fail(error);
  return error == EINTR;
}

// Text that was written is erased seldom, since erasing moves what follows it.
void Console::forget_written() {
  if (size() > 0 && written_ < options_.buffer_bytes)
    return;
  buffer_.erase(0, written_);
  written_ = 0;
}

// The loop calls push() for as long as something waits.
void Console::watch_reader() {
  if (size() == 0) {
    loop_.cancel(watch_);
    loop_.cancel(stall_timer_);
  } else if (watch_ == 0) {
    watch_ = loop_.watch_writable(writer_.fd(), [this] { push(); });
  }
}

// Writes until the reader takes no more.
void Console::push() {
  while (size() > 0 && write_some()) {
  }
  if (closed_)
    return;
  forget_written();
  watch_reader();
  const bool has_paused = full_ || stalled_;
  if (has_paused && size() <= options_.buffer_bytes / 2) {
    full_ = stalled_ = false;
    tell_of_room();
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
  tell_of_room();
}

// A disk that is full gets no note of what is missing.
bool Console::has_more_to_say() const {
  return size() > 0 || (dropped_bytes_ > 0 && !failing_);
}

void Console::flush(const Condition& hurry) {
  last_progress_ = Clock::now();  // also where the reader had stopped: it may be back
  bool patient = waits_;
  while (has_more_to_say()) {
    if (size() == 0)
      add_note_of_dropped();
    push();
    if (size() == 0)
      continue;
    if (patient && hurry()) {
      patient = false;
      last_progress_ = Clock::now();
    }
    const auto due = last_progress_ + options_.stalled_after;
    if (!patient && Clock::now() >= due)
      return give_up();
    loop_.run_once(patient ? std::nullopt : std::optional(due));
  }
}

// The log is another way to the reader, and may still be seen.
void Console::give_up() {
  log_warning(format_bytes(size() + dropped_bytes_),
              " of output not shown on ",
              name_of(fd_),
              ": the reader has stopped (--tee 3 keeps it in files)");
  dropped_bytes_ = 0;
  buffer_.clear();
  written_ = 0;
}

}  // namespace muster
