// Messages between two ranks of a team. A thread moves them, so that sends and receives wait for
// nothing but their own partner; the caller's own thread moves what can be moved at once. Messages
// of one pair and tag arrive in the order in which they were sent.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/lock.h"
#include "muster/base/no_copy.h"
#include "muster/shm/collectives.h"
#include "muster/shm/message_frame.h"

namespace muster::shm {

inline constexpr int kAnySource = -1;

class Mailbox : NoCopy {
 public:
  // Called once, in the mailbox's thread or in one that calls send() or receive(), also before that
  // returns: the message has been sent or received (from `source`), or has failed.
  using Done = std::function<void(int source, std::exception_ptr error)>;

  explicit Mailbox(Team& team);
  ~Mailbox();  // messages that are under way fail

  // The memory stays the caller's until `done`. Throws: unavailable when the first message to this
  // rank finds no memory for its channel.
  void send(int to, int tag, Part data, milliseconds timeout, Done done);
  void receive(int from, int tag, Part data, milliseconds timeout, Done done);

 private:
  struct Pending {
    bool is_from(int rank) const { return peer == rank || peer == kAnySource; }

    int peer = 0;  // or kAnySource
    int tag = 0;
    Part data;
    Deadline deadline;
    Done done;
    size_t moved = 0;       // of a send: of the frame and the data
    bool is_taken = false;  // of a receive: a message is being read for it
  };
  // A message that has come from a rank and that nobody has asked for yet.
  struct Stray {
    MessageFrame frame;
    std::vector<std::byte> data;
  };
  // A message that is being read.
  struct Incoming {
    bool has_frame = false;
    MessageFrame frame{};
    size_t read = 0;
    std::list<Pending>::iterator wanted;  // valid when is_wanted
    bool is_wanted = false;
    std::vector<std::byte> stray;
  };

  struct Look;
  void run();
  std::optional<Look> look(bool drowsy);
  void fail_all();
  bool is_here() const;
  bool is_busy() const;
  milliseconds longest_nap() const;
  void run_callbacks(UniqueLock& lock);
  bool move_all();
  bool push(int to);
  bool push_message(int to, Pending& message, size_t& moved);
  bool pull(int from);
  bool pull_frame(int from, Incoming& message, size_t& moved);
  bool pull_data(int from, Incoming& message, size_t& moved);
  void find_wanted(int from, Incoming& message);
  bool wants_from(int peer) const;
  void finish_incoming(int from);
  bool give_stray(std::list<Pending>::iterator wanted);
  bool has_unread(int from) const;
  std::string why_lost(const Pending& pending, bool is_send) const;
  std::exception_ptr late_or_lost(const Pending& pending, bool is_send) const;
  bool fail_sends();
  bool fail_receives();
  void leave_as_stray(std::list<Pending>::iterator wanted);
  void finish(Pending& pending, const std::exception_ptr& error = nullptr);
  void ring(int rank);

  Team& team_;
  std::mutex mutex_;
  std::vector<std::deque<Pending>> sends_;  // by rank
  std::vector<bool> open_;                  // channels whose pages exist
  std::list<Pending> receives_;             // in the order of posting
  std::vector<Incoming> incoming_;          // by rank
  std::vector<std::deque<Stray>> strays_;   // by rank
  std::vector<Callback> callbacks_;         // of ended messages, to run without the lock
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace muster::shm
