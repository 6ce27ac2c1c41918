// Lines to and from another process over two descriptors, without ever blocking: what cannot be
// written yet is kept, what is read is handed on line by line. For remote_host.h and server.h;
// knows nothing of what the lines say.
#pragma once

#include <string>

#include "muster/base/fd.h"
#include "muster/base/functions.h"
#include "muster/supervise/event_loop.h"

namespace muster {

struct LineHandlers {
  TextFunction line{};  // without its newline
  // Once, when nothing can come any more: `why` is empty at an end between two lines.
  TextFunction end{};
  Callback drained{};  // all that was to be written has been taken
};

class LineChannel {
 public:
  // A line longer than `longest` ends the channel.
  LineChannel(Fd in, Fd out, size_t longest);
  LineChannel(const LineChannel&) = delete;
  LineChannel& operator=(const LineChannel&) = delete;
  ~LineChannel() { detach(); }

  // From now on the handlers are called by this loop, first for what was read before. A handler may
  // detach. A loop that ends before the channel does needs a DetachedAtEnd.
  void attach(EventLoop& loop, LineHandlers handlers);
  void detach();

  // `line` has its newline. Lost when the other side is gone, which `end` tells.
  void send(const std::string& line);

  // Bytes that have not been taken yet.
  size_t queued() const { return pending_.size() - taken_; }

  // The other side finds the end of its input when it has read what was sent before.
  void close_output();

 private:
  void read_some();
  bool hand_on();
  void write_some();
  void finish(const std::string& why);

  Fd in_;
  Fd out_;
  size_t longest_;
  EventLoop* loop_ = nullptr;
  LineHandlers handlers_;
  EventLoop::Handle reads_ = 0;
  EventLoop::Handle writes_ = 0;
  EventLoop::Handle soon_ = 0;
  std::string read_;   // beginning with a line's first byte
  size_t looked_ = 0;  // of read_, without a newline
  std::string pending_;
  size_t taken_ = 0;
  bool ended_ = false;
  bool closing_ = false;
};

// Made after the loop: detaches the channel before the loop ends, also where a handler throws.
class DetachedAtEnd {
 public:
  explicit DetachedAtEnd(LineChannel& channel) : channel_(channel) {}
  DetachedAtEnd(const DetachedAtEnd&) = delete;
  DetachedAtEnd& operator=(const DetachedAtEnd&) = delete;
  ~DetachedAtEnd() { channel_.detach(); }

 private:
  LineChannel& channel_;
};

}  // namespace muster
