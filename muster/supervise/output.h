// What child processes print: their pipes read, lines prefixed and passed to the console whole,
// copied to files, and the end of each kept for a report. Bytes are never changed, memory is
// bounded whatever is printed, and no child waits for ever on a console that nobody reads. Knows
// nothing of ranks.
#pragma once

#include <fcntl.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/supervise/collapse.h"
#include "muster/supervise/console.h"
#include "muster/supervise/event_loop.h"
#include "muster/supervise/live_lines.h"

namespace muster {

struct StreamOptions {
  int console_fd = -1;   // 1 or 2: shown there; -1: not shown
  std::string prefix{};  // before each line on the console; empty: bytes pass straight through
  // This stream's number among those that may say the same (LineCollapser, on terminals).
  int collapse_as = -1;
  bool whole_lines = false;  // also without a prefix: lines of several streams are never mixed
  std::string file{};        // a copy of every byte; empty: none
  int folder = AT_FDCWD;     // where the file's last name is looked up (create_log)
  size_t tail_bytes = 0;     // how much of the end to keep in memory
};

class Output : NoCopy {
 public:
  using StreamId = size_t;

  explicit Output(EventLoop& loop, ConsoleOptions options = {});
  ~Output();

  struct Opened {
    StreamId id;
    Fd child_end;  // give it to the child, then close it
  };

  // Throws: io when the pipe or the file cannot be made.
  Opened open(StreamOptions options);

  // From now on its lines on the console begin so, where they had a prefix before.
  void set_prefix(StreamId id, const std::string& prefix);

  // Takes what the pipe of one whose writer has ended holds now, and lets go of it: its number may
  // be given to another.
  void forget(StreamId id);

  // Takes what the pipes hold now, closes them, and empties the consoles. For when the writers have
  // ended. Blocking: as long as somebody reads the console, or holds its pipe (Console::flush,
  // `hurry` too: after `until` it is as if that said yes).
  void finish(const Condition& hurry = {}, OptionalTime until = {});

  // The last lines of a stream, at most `count`, without their line ends. Valid after finish too.
  Strings last_lines(StreamId id, size_t count) const;

  // Its last lines are on the console, and others have said next to nothing there since.
  bool in_sight(StreamId id) const;

 private:
  class Stream;

  Console* console(int fd);
  static void take_rest(Stream& stream, const Condition& hurry = {});
  void flush_all(const Condition& is_late);
  void resume_all();
  void show_collapsed(bool all);
  void set_live(size_t id, const StreamOptions& options, const std::string& text);
  void redraw_live(const std::string& above);
  std::string erase_live();

  EventLoop& loop_;
  ConsoleOptions options_;
  std::array<std::unique_ptr<Console>, 3> consoles_;  // by descriptor: 1, 2; one may stand for both
  std::vector<std::unique_ptr<Stream>> streams_;
  LineCollapser collapser_;
  Console* collapsed_to_ = nullptr;  // and the live lines
  EventLoop::Handle collapse_timer_ = 0;
  LiveLines live_;
  size_t bytes_shown_ = 0;  // of all streams
  bool live_drawn_ = false;
  EventLoop::Handle live_timer_ = 0;
};

}  // namespace muster
