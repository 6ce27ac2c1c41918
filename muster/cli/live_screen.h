// A terminal that shows a changing text until a key or a signal ends it, and is afterwards as it
// was before. For `muster top`.
#pragma once

#include <signal.h>
#include <termios.h>

#include <string>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/no_copy.h"

namespace muster {

class LiveScreen : NoCopy {
 public:
  // Takes the terminal `fd`, and keys from standard input where that is a terminal too: the other
  // screen, no echo. SIGINT, SIGTERM, SIGHUP and SIGTSTP are this object's until it goes.
  explicit LiveScreen(int fd);
  ~LiveScreen();

  // Shows as much of the text as the terminal has room for. Throws: io.
  void show(const std::string& text);

  // Returns false if the user has seen enough: q, Ctrl-C, or a signal that ends. Blocking: at most
  // so long; less if the window gets another size.
  bool wait(milliseconds duration);

 private:
  void take_terminal();
  void give_terminal_back();
  bool take_signal();
  bool take_keys();

  const int fd_;
  const bool has_keys_;
  sigset_t before_{};
  termios keys_before_{};
  Fd signals_;
  bool again_ = false;  // draw at once
};

}  // namespace muster
