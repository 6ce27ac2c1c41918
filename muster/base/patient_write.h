// Writing to a descriptor that others share (the shell, the ranks) without changing its mode and
// without ever waiting for a reader that has stopped. Used by the launcher for everything that it
// says: log lines, the plan, the failure card, and by Console for what ranks print.
#pragma once

#include <string_view>

#include "muster/base/clock.h"
#include "muster/base/fd.h"

namespace muster {

class NonBlockingWriter {
 public:
  // `fd` stays the caller's.
  explicit NonBlockingWriter(int fd);

  // Like write(2) with O_NONBLOCK: the number of bytes taken, or -1 with errno. SIGPIPE is the
  // caller's affair.
  long write(std::string_view bytes) const;

  // What to poll for room.
  int fd() const { return own_.valid() ? own_.get() : fd_; }

 private:
  enum class Mode { direct, nonblocking, socket, polled };

  int fd_;
  Mode mode_ = Mode::direct;
  Fd own_;  // a second, non-blocking way to the same file
};

// Writes `bytes`. False when they were not all taken: the reader took none for `limit`, or is gone.
// Blocking: at most `limit` between two bytes that are taken. Throws: nothing.
bool write_within(int fd, std::string_view bytes, milliseconds limit) noexcept;

// Patience with a reader, where nothing else is said.
inline constexpr milliseconds kReaderPatience{5'000};

}  // namespace muster
