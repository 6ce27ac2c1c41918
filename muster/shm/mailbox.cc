// A channel is a ring of bytes from one rank to another, with two counters: the sender alone moves
// `written` and the receiver alone moves `read`. A message is its frame followed by its data. Each
// side rings the other's bell when it has moved something, and futex words let the threads sleep in
// between. Everything else here belongs to one process and is guarded by mutex_.
//
// clang-format off
// The states of a message. A rank is lost when it has ended or has given up the group.
//
//   state         kept in                   moves on when                     too late, or the other rank is lost
//   to be sent    sends_[to]                the channel has room              the send fails
//   half sent     sends_[to].front()        all is written: done              the send fails, and with it the team
//   asked for     receives_                 its frame, or its stray, comes    the receive fails
//   being read    incoming_[from], wanted   all is read: done                 the receive fails; it becomes half a stray
//   half a stray  incoming_[from]           all is read                       what the channel still has is read
//   stray         strays_[from]             it is asked for: done             -
// clang-format on
#include "muster/shm/mailbox.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/shm/futex.h"
#include "muster/shm/waiting.h"

namespace muster::shm {

namespace {

constexpr std::chrono::microseconds kIdleTime{20};  // of looking in vain, before the thread sleeps

// The ring of bytes from one rank to another.
class Channel {
 public:
  Channel(Team& team, int from, int to)
      : words_(*reinterpret_cast<ChannelWords*>(team.at(team.layout().channel_words(from, to)))),
        ring_(team.at(team.layout().channel(from, to))) {}

  // Writes as much as there is room for, and returns how much that was. What the receiver reads is
  // there when it sees `written`.
  size_t write(const std::byte* from, size_t bytes) {
    const uint64_t written = words_.written.load(std::memory_order_relaxed);
    const size_t room = kChannelBytes - (written - words_.read.load(std::memory_order_acquire));
    const size_t count = std::min(room, bytes);
    if (count == 0)
      return 0;
    const size_t at = written % kChannelBytes;
    const size_t first = std::min(count, kChannelBytes - at);
    std::memcpy(ring_ + at, from, first);
    if (count > first)
      std::memcpy(ring_, from + first, count - first);
    words_.written.store(written + count);
    return count;
  }

  // Reads as much as there is, and returns how much that was. The sender may overwrite it when it
  // sees `read`.
  size_t read(std::byte* to, size_t bytes) {
    const uint64_t read = words_.read.load(std::memory_order_relaxed);
    const size_t there = words_.written.load(std::memory_order_acquire) - read;
    const size_t count = std::min(there, bytes);
    if (count == 0)
      return 0;
    const size_t at = read % kChannelBytes;
    const size_t first = std::min(count, kChannelBytes - at);
    std::memcpy(to, ring_ + at, first);
    if (count > first)
      std::memcpy(to + first, ring_, count - first);
    words_.read.store(read + count);
    return count;
  }

  bool has_unread() const { return words_.written.load() != words_.read.load(); }

 private:
  ChannelWords& words_;
  std::byte* const ring_;
};

}  // namespace

Mailbox::Mailbox(Team& team)
    : team_(team),
      sends_(team.size()),
      open_(team.size()),
      incoming_(team.size()),
      strays_(team.size()) {
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { run(); });
}

Mailbox::~Mailbox() {
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  ring(team_.rank());
  thread_.join();
}

void Mailbox::ring(int rank) {
  Line& line = team_.line(rank);
  line.mail_bell.fetch_add(1);
  if (line.mail_sleeps.load() != 0)
    futex_wake_all(line.mail_bell);
}

void Mailbox::send(int to, int tag, Part data, milliseconds timeout, Done done) {
  UniqueLock lock(mutex_);
  if (!open_[to]) {
    team_.memory()->reserve(team_.layout().channel(team_.rank(), to), kChannelBytes);
    open_[to] = true;
  }
  sends_[to].push_back({.peer = to,
                        .tag = tag,
                        .data = data,
                        .deadline = Deadline(timeout),
                        .done = std::move(done)});
  if (is_here())
    push(to);
  if (!sends_[to].empty())
    ring(team_.rank());
  run_callbacks(lock);
}

void Mailbox::receive(int from, int tag, Part data, milliseconds timeout, Done done) {
  UniqueLock lock(mutex_);
  receives_.push_back({.peer = from,
                       .tag = tag,
                       .data = data,
                       .deadline = Deadline(timeout),
                       .done = std::move(done)});
  if (!give_stray(std::prev(receives_.end())) && from != kAnySource && is_here())
    pull(from);
  if (!receives_.empty())
    ring(team_.rank());
  run_callbacks(lock);
}

bool Mailbox::is_here() const {
  return team_.line(team_.rank()).state.load() == RankState::here;
}

bool Mailbox::is_busy() const {
  return !receives_.empty() || any_of(sends_, [](const auto& queue) { return !queue.empty(); });
}

// Without messages somebody rings when there are some. With some, their deadlines and the ranks'
// states are looked at now and then.
milliseconds Mailbox::longest_nap() const {
  milliseconds nap = is_busy() ? longest_sleep.load() : std::chrono::hours(1);
  const auto end_at = [&nap](const Pending& pending) {
    nap = std::min(nap, pending.deadline.left() + milliseconds(1));
  };
  std::ranges::for_each(receives_, end_at);
  for (const auto& queue : sends_)
    std::ranges::for_each(queue, end_at);
  return nap;
}

// Tells the callers whose messages have ended. It leaves the lock first: they may send again.
void Mailbox::run_callbacks(UniqueLock& lock) {
  std::vector<Callback> callbacks;
  callbacks.swap(callbacks_);
  lock.unlock();
  for (const auto& callback : callbacks)
    callback();
}

// What a look for something to move has found.
struct Mailbox::Look {
  bool moved = false;
  bool busy = false;
  milliseconds nap{0};  // how long to sleep then
};

// Moves what can be moved. Returns nothing once the mailbox ends.
std::optional<Mailbox::Look> Mailbox::look(bool drowsy) {
  UniqueLock lock(mutex_);
  if (stop_)
    return std::nullopt;
  Look found;
  found.moved = move_all();
  found.moved |= fail_sends();
  found.moved |= fail_receives();
  found.busy = is_busy();
  if (drowsy)
    found.nap = longest_nap();
  run_callbacks(lock);
  return found;
}

// The thread looks for something to move, a few times in vain, and then sleeps until its bell is
// rung. Before it sleeps it says so (mail_sleeps) and looks once more: whoever rings earlier than
// it says so is seen by that look, and whoever rings later wakes it. It has read the bell before
// the look, so that a ring in between keeps futex_wait() from sleeping.
void Mailbox::run() {
  Line& line = team_.line(team_.rank());
  std::optional<WaitingTime> idle;
  bool drowsy = false;  // it has said that it sleeps, and looks once more
  for (;;) {
    if (drowsy)
      line.mail_sleeps.store(1);
    const uint32_t seen = line.mail_bell.load();
    const std::optional<Look> found = look(drowsy);
    if (!found)
      break;
    if (!found->moved && !drowsy) {
      if (!idle)
        idle.emplace();
      drowsy = !found->busy || team_.crowded() || idle->is_over(kIdleTime, /*now=*/true);
      relax();
      continue;
    }
    if (!found->moved)
      futex_wait(line.mail_bell, seen, found->nap);
    line.mail_sleeps.store(0);
    drowsy = false;
    idle.reset();
  }
  line.mail_sleeps.store(0);
  fail_all();
}

void Mailbox::fail_all() {
  UniqueLock lock(mutex_);
  const auto over = std::make_exception_ptr(
      failed_precondition("message: expected the group to live until it was moved, got its end"));
  for (auto& queue : sends_) {
    for (auto& pending : queue)
      finish(pending, over);
  }
  for (auto& pending : receives_)
    finish(pending, over);
  run_callbacks(lock);
}

// A receive from any rank has the source as its peer by now, unless it fails.
void Mailbox::finish(Pending& pending, const std::exception_ptr& error) {
  callbacks_.push_back(
      [done = std::move(pending.done), peer = pending.peer, error] { done(peer, error); });
}

bool Mailbox::wants_from(int peer) const {
  return any_of(receives_, [&](const Pending& wanted) { return wanted.is_from(peer); });
}

// Moves whatever can be moved; false where nothing could. A rank that has given up moves nothing:
// its channels may end within a message.
bool Mailbox::move_all() {
  if (!is_here())
    return false;
  bool moved = false;
  for (const int peer : indices_below(team_.size())) {
    if (!sends_[peer].empty())
      moved |= push(peer);
    if (peer != team_.rank() && wants_from(peer))
      moved |= pull(peer);
  }
  return moved;
}

// Sends to one rank what its channel has room for; true where that was something.
bool Mailbox::push(int to) {
  auto& queue = sends_[to];
  size_t moved = 0;
  while (!queue.empty() && push_message(to, queue.front(), moved)) {
    finish(queue.front());
    queue.pop_front();
  }
  if (moved != 0)
    ring(to);
  return moved != 0;
}

// Writes the frame, then the data. False where the channel is full before all is written.
bool Mailbox::push_message(int to, Pending& message, size_t& moved) {
  Channel channel(team_, team_.rank(), to);
  const auto write = [&](const std::byte* from, size_t bytes) {
    const size_t now = channel.write(from, bytes);
    message.moved += now;
    moved += now;
    return now == bytes;
  };
  const MessageFrame frame = frame_of(message.data, message.tag);
  if (message.moved < sizeof(frame)) {
    const auto rest = std::as_bytes(std::span(&frame, 1)).subspan(message.moved);
    if (!write(rest.data(), rest.size()))
      return false;
  }
  const size_t sent = message.moved - sizeof(frame);
  return write(message.data.data + sent, message.data.bytes - sent);
}

// Reads from one rank what is wanted of it, and the rest of a message that has begun; true where
// that was something.
bool Mailbox::pull(int from) {
  Incoming& message = incoming_[from];
  size_t moved = 0;
  while (message.has_frame || wants_from(from)) {
    if (!message.has_frame && !pull_frame(from, message, moved))
      break;
    if (!pull_data(from, message, moved))
      break;
    finish_incoming(from);
  }
  if (moved != 0)
    ring(from);
  return moved != 0;
}

bool Mailbox::pull_frame(int from, Incoming& message, size_t& moved) {
  const auto rest = std::as_writable_bytes(std::span(&message.frame, 1)).subspan(message.read);
  const size_t now = Channel(team_, from, team_.rank()).read(rest.data(), rest.size());
  message.read += now;
  moved += now;
  if (message.read < sizeof(MessageFrame))
    return false;
  message.has_frame = true;
  message.read = 0;
  find_wanted(from, message);
  return true;
}

bool Mailbox::pull_data(int from, Incoming& message, size_t& moved) {
  std::byte* const to = message.is_wanted ? message.wanted->data.data : message.stray.data();
  const size_t now = Channel(team_, from, team_.rank())
                         .read(to + message.read, message.frame.bytes - message.read);
  message.read += now;
  moved += now;
  return message.read == message.frame.bytes;
}

// Finds the first receive that takes a message of this frame, in the order of posting. A message of
// another length or type is read as a stray, and fails its receive when it is given to it.
void Mailbox::find_wanted(int from, Incoming& message) {
  message.wanted = std::ranges::find_if(receives_, [&](const Pending& wanted) {
    return wanted.is_from(from) && wanted.tag == message.frame.tag && !wanted.is_taken;
  });
  message.is_wanted = message.wanted != receives_.end() &&
                      fits(frame_of(message.wanted->data, message.wanted->tag), message.frame);
  if (!message.is_wanted) {
    message.stray.resize(message.frame.bytes);
    return;
  }
  message.wanted->is_taken = true;
  message.wanted->peer = from;
}

// All of a message has come: its receive ends, or it waits as a stray for a receive to come.
void Mailbox::finish_incoming(int from) {
  Incoming message = std::exchange(incoming_[from], Incoming{});
  if (message.is_wanted) {
    finish(*message.wanted);
    receives_.erase(message.wanted);
    return;
  }
  strays_[from].push_back({.frame = message.frame, .data = std::move(message.stray)});
  for (auto wanted = receives_.begin(); wanted != receives_.end();) {
    const auto next = std::next(wanted);
    if (!wanted->is_taken && give_stray(wanted))
      return;
    wanted = next;
  }
}

// Ends a receive with a message that came before it was asked for. False where there is none.
bool Mailbox::give_stray(std::list<Pending>::iterator wanted) {
  for (const int peer : indices_below(team_.size())) {
    if (!wanted->is_from(peer))
      continue;
    auto& strays = strays_[peer];
    const auto found = std::ranges::find_if(
        strays, [&](const Stray& stray) { return stray.frame.tag == wanted->tag; });
    if (found == strays.end())
      continue;
    const Stray stray = std::move(*found);
    strays.erase(found);
    const MessageFrame fitting = frame_of(wanted->data, wanted->tag);
    std::exception_ptr error;
    if (!fits(fitting, stray.frame))
      error = std::make_exception_ptr(
          misfit(fitting, stray.frame, team_.name(peer), team_.name(team_.rank())));
    else if (!stray.data.empty())
      std::memcpy(wanted->data.data, stray.data.data(), stray.data.size());
    wanted->peer = peer;
    finish(*wanted, error);
    receives_.erase(wanted);
    return true;
  }
  return false;
}

// A message that has come from a rank, wholly or in part, is still received when the rank has
// ended.
bool Mailbox::has_unread(int from) const {
  return Channel(team_, from, team_.rank()).has_unread();
}

// Says why nobody will move this message any more; "" where somebody may.
std::string Mailbox::why_lost(const Pending& pending, bool is_send) const {
  if (!is_here())
    return "this rank has given up the group";
  const auto lives = [&](int rank) {
    return team_.line(rank).state.load() == RankState::here;
  };
  if (pending.peer != kAnySource) {
    const bool lost = !lives(pending.peer) && (is_send || !has_unread(pending.peer));
    return lost ? team_.failure({pending.peer}) : "";
  }
  for (const int rank : indices_below(team_.size())) {
    if (rank != team_.rank() && (lives(rank) || has_unread(rank)))
      return "";
  }
  return "no other rank is left";
}

// Returns the failure of a message whose time has run out or whose other side is lost; null where
// neither is so.
std::exception_ptr Mailbox::late_or_lost(const Pending& pending, bool is_send) const {
  const auto lost = why_lost(pending, is_send);
  if (lost.empty() && !pending.deadline.passed())
    return nullptr;
  const std::string peer =
      pending.peer == kAnySource ? "any rank" : cat("rank ", team_.name(pending.peer));
  const auto where = cat(
      is_send ? "send to " : "recv from ", peer, " (tag ", pending.tag, ") ", team_.here(), ": ");
  if (!lost.empty())
    return std::make_exception_ptr(
        Error(ErrorCode::peer_failed, where, lost, "; the first rank that failed has the cause"));
  return std::make_exception_ptr(Error(ErrorCode::timeout,
                                       where,
                                       "Timed out waiting ",
                                       pending.deadline.limit().count(),
                                       "ms; see what that rank does, or give a longer timeout"));
}

// True where a message has failed. A send that has written a part of its message ends the channel
// in the middle of it: then nothing can follow, and this rank gives up the team.
bool Mailbox::fail_sends() {
  bool any = false;
  for (auto& queue : sends_) {
    while (!queue.empty()) {
      const auto error = late_or_lost(queue.front(), /*is_send=*/true);
      if (!error)
        break;
      if (queue.front().moved != 0)
        team_.give_up();
      finish(queue.front(), error);
      queue.pop_front();
      any = true;
    }
  }
  return any;
}

bool Mailbox::fail_receives() {
  bool any = false;
  for (auto wanted = receives_.begin(); wanted != receives_.end();) {
    const auto error = late_or_lost(*wanted, /*is_send=*/false);
    if (!error) {
      ++wanted;
      continue;
    }
    leave_as_stray(wanted);
    finish(*wanted, error);
    wanted = receives_.erase(wanted);
    any = true;
  }
  return any;
}

// A message that is being read for a receive goes on as one that nobody has asked for yet.
void Mailbox::leave_as_stray(std::list<Pending>::iterator wanted) {
  for (Incoming& message : incoming_) {
    if (!message.is_wanted || message.wanted != wanted)
      continue;
    message.is_wanted = false;
    message.stray.resize(message.frame.bytes);
    if (message.read != 0)
      std::memcpy(message.stray.data(), wanted->data.data, message.read);
  }
}

}  // namespace muster::shm
