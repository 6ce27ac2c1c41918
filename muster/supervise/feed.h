// Writes a child's standard input: a text, and then, if wanted, this process's own standard input
// as it comes. Never blocks the loop.
#pragma once

#include <string>

#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/supervise/event_loop.h"

namespace muster {

class Feed : NoCopy {
 public:
  Feed(EventLoop& loop, Fd pipe, std::string text, bool then_standard_input);
  ~Feed() { close(); }

 private:
  void write_some();
  void read_some();
  void wait_for_input();
  void close();

  EventLoop& loop_;
  Fd pipe_;
  std::string pending_;
  bool has_more_;
  EventLoop::Handle watch_ = 0;
};

}  // namespace muster
