// Writing to the launcher's own standard output or error without ever blocking: a bounded buffer
// that empties as the reader takes it. A reader that is slow is waited for (`full` tells the
// streams to pause), and so is whoever holds a pipe (`| less`). A terminal that has stopped is not,
// nor is a full disk; what is missing there is counted and said. Used by Output.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/no_copy.h"
#include "muster/base/patient_write.h"
#include "muster/supervise/event_loop.h"

namespace muster {

struct ConsoleOptions {
  size_t buffer_bytes = 1 << 20;
  // A full buffer of which a terminal takes nothing for this long: go on without it.
  milliseconds stalled_after = kReaderPatience;
  bool pipes_may_stall = false;  // the same for pipes
};

class Console : NoCopy {
 public:
  // `fd` stays the caller's, and its mode is not changed (others, such as the shell, share it).
  Console(EventLoop& loop, int fd, ConsoleOptions options = {});
  ~Console();

  // Takes `text` whole, or drops it whole when the reader has stopped or the disk is full.
  void write(std::string_view text);

  // True when writers should pause, from a full buffer until it is half empty; then `on_room` is
  // called.
  bool full() const { return full_; }
  Callback on_room;

  // True when nobody can ever read it again (a closed pipe).
  bool closed() const { return closed_; }

  // Who wrote the last, unfinished line; null when it is finished. Kept for the writers, who may
  // come by the name of standard output or of standard error and still share the line.
  const void* unfinished_line_of = nullptr;

  // Whether `fd` leads to the same terminal, pipe or file.
  bool same_as(int fd) const;

  // Writes out what is buffered. Blocking: while a pipe is held, and as long as any other reader
  // takes some of it. `hurry` says when to wait for a pipe no longer than for others.
  void flush(const Condition& hurry = [] { return false; });

 private:
  void push();
  bool write_some();
  void forget_written();
  void watch_reader();
  bool has_more_to_say() const;
  void tell_of_room() const;
  void check_stall();
  void give_up();
  void fail(int why);
  bool works_again();
  std::string note_of_dropped() const;
  void add_note_of_dropped();
  void close();
  size_t size() const { return buffer_.size() - written_; }

  EventLoop& loop_;
  int fd_;
  NonBlockingWriter writer_;
  ConsoleOptions options_;
  bool waits_;  // for ever, if need be
  std::string buffer_;
  size_t written_ = 0;  // of buffer_
  EventLoop::Handle watch_ = 0;
  EventLoop::Handle stall_timer_ = 0;
  TimePoint last_progress_;
  bool full_ = false;
  bool stalled_ = false;
  bool closed_ = false;
  bool failing_ = false;  // the last write was refused, as by a full disk
  bool warned_ = false;
  uint64_t dropped_bytes_ = 0;
  std::string why_dropped_ = "the reader had stopped";
};

}  // namespace muster
