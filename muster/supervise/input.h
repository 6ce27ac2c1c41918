// Standard input for one child. A file or a pipe is simply inherited; a terminal cannot be, because
// the child is in a process group of its own and would be stopped when it reads: so its bytes are
// carried over a pipe.
#pragma once

#include <string>

#include "muster/supervise/event_loop.h"

namespace muster {

class Input {
 public:
  explicit Input(EventLoop& loop) : loop_(loop) {}
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
  ~Input() { close(); }

  // What to give to the child as its standard input: a pipe, or nothing when ours can be inherited.
  // Throws: io.
  Fd open();

  // Stops carrying.
  void close();

 private:
  void watch_terminal();
  void read_terminal();
  void write_pipe();
  void on_room();

  EventLoop& loop_;
  Fd pipe_;
  EventLoop::Handle watch_ = 0;
  std::string pending_;  // read from the terminal, not taken by the child yet
};

}  // namespace muster
