#include "muster/shm/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/shm/futex.h"

namespace muster::shm {

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

namespace {

constexpr std::chrono::milliseconds kLongestNap{100};  // then deadlines and states are looked at
constexpr int kIdleLooks = 50;

}  // namespace

Mailbox::Mailbox(Team& team)
    : team_(team),
      sends_(static_cast<size_t>(team.size())),
      open_(static_cast<size_t>(team.size())),
      incoming_(static_cast<size_t>(team.size())),
      strays_(static_cast<size_t>(team.size())) {
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { run(); });
}

Mailbox::~Mailbox() {
  {
    const std::lock_guard lock(mutex_);
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

ChannelWords& Mailbox::words(int from, int to) const {
  return *reinterpret_cast<ChannelWords*>(team_.at(team_.layout().channel_words(from, to)));
}

void Mailbox::send(int to, int tag, Part data, std::chrono::milliseconds timeout, Done done) {
  const auto peer = static_cast<size_t>(to);
  std::unique_lock lock(mutex_);
  if (!open_[peer]) {
    team_.memory()->reserve(team_.layout().channel(team_.rank(), to), kChannelBytes);
    open_[peer] = true;
  }
  sends_[peer].push_back({.peer = to,
                          .tag = tag,
                          .data = data,
                          .deadline = Deadline(timeout),
                          .done = std::move(done)});
  if (is_here())
    push(to);
  if (!sends_[peer].empty())
    ring(team_.rank());
  run_callbacks(lock);
}

void Mailbox::receive(int from, int tag, Part data, std::chrono::milliseconds timeout, Done done) {
  std::unique_lock lock(mutex_);
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

// Whose messages have ended, outside of the lock.
void Mailbox::run_callbacks(std::unique_lock<std::mutex>& lock) {
  std::vector<std::function<void()>> callbacks;
  callbacks.swap(callbacks_);
  lock.unlock();
  for (const auto& callback : callbacks)
    callback();
}

void Mailbox::run() {
  Line& line = team_.line(team_.rank());
  int idle = 0;
  bool drowsy = false;  // it has said that it sleeps, and looks once more
  for (;;) {
    if (drowsy)
      line.mail_sleeps.store(1);
    const uint32_t seen = line.mail_bell.load();
    bool moved = false, busy = false;
    {
      std::unique_lock lock(mutex_);
      if (stop_)
        break;
      moved = move_all();
      moved |= fail_late_and_lost();
      busy = !receives_.empty() || std::any_of(sends_.begin(), sends_.end(), [](const auto& queue) {
        return !queue.empty();
      });
      run_callbacks(lock);
    }
    if (!moved && !drowsy) {
      drowsy = !busy || team_.crowded() || ++idle >= kIdleLooks;
      relax();
      continue;
    }
    if (!moved)
      futex_wait(line.mail_bell, seen, busy ? kLongestNap : std::chrono::hours(1));
    line.mail_sleeps.store(0);
    drowsy = false;
    idle = 0;
  }
  line.mail_sleeps.store(0);
  std::unique_lock lock(mutex_);
  const auto over = std::make_exception_ptr(
      Error(ErrorCode::failed_precondition,
            "message: expected the group to live until it was moved, got its end"));
  for (auto& queue : sends_)
    for (auto& pending : queue)
      fail(pending, over);
  for (auto& pending : receives_)
    fail(pending, over);
  run_callbacks(lock);
}

void Mailbox::fail(Pending& pending, const std::exception_ptr& error) {
  const int peer = pending.peer;
  finish(std::move(pending), peer, error);
}

void Mailbox::finish(Pending pending, int source, const std::exception_ptr& error) {
  callbacks_.push_back([done = std::move(pending.done), source, error] { done(source, error); });
}

bool Mailbox::wants_from(int peer) const {
  return std::any_of(receives_.begin(), receives_.end(), [&](const Pending& wanted) {
    return wanted.peer == peer || wanted.peer == kAnySource;
  });
}

bool Mailbox::move_all() {
  bool moved = false;
  if (!is_here())
    return moved;  // a channel may end within a message
  for (int peer = 0; peer < team_.size(); ++peer) {
    if (!sends_[static_cast<size_t>(peer)].empty())
      moved |= push(peer);
    if (peer != team_.rank() && wants_from(peer))
      moved |= pull(peer);
  }
  return moved;
}

// As much as there is room for.
size_t Mailbox::write_ring(int to, const std::byte* from, size_t bytes) {
  ChannelWords& channel = words(team_.rank(), to);
  const uint64_t written = channel.written.load(std::memory_order_relaxed);
  const size_t room = kChannelBytes - (written - channel.read.load(std::memory_order_acquire));
  const size_t count = std::min(room, bytes);
  std::byte* const ring = team_.at(team_.layout().channel(team_.rank(), to));
  const size_t at = written % kChannelBytes;
  const size_t first = std::min(count, kChannelBytes - at);
  if (count == 0)
    return 0;
  std::memcpy(ring + at, from, first);
  if (count > first)
    std::memcpy(ring, from + first, count - first);
  channel.written.store(written + count);
  return count;
}

size_t Mailbox::read_ring(int from, std::byte* to, size_t bytes) {
  ChannelWords& channel = words(from, team_.rank());
  const uint64_t read = channel.read.load(std::memory_order_relaxed);
  const size_t there = channel.written.load(std::memory_order_acquire) - read;
  const size_t count = std::min(there, bytes);
  const std::byte* const ring = team_.at(team_.layout().channel(from, team_.rank()));
  const size_t at = read % kChannelBytes;
  const size_t first = std::min(count, kChannelBytes - at);
  if (count == 0)
    return 0;
  std::memcpy(to, ring + at, first);
  if (count > first)
    std::memcpy(to + first, ring, count - first);
  channel.read.store(read + count);
  return count;
}

bool Mailbox::push(int to) {
  auto& queue = sends_[static_cast<size_t>(to)];
  size_t moved = 0;
  while (!queue.empty()) {
    Pending& message = queue.front();
    const Frame frame{.bytes = message.data.bytes, .tag = message.tag};
    size_t now = 0;
    if (message.moved < sizeof(frame)) {
      now = write_ring(to,
                       reinterpret_cast<const std::byte*>(&frame) + message.moved,
                       sizeof(frame) - message.moved);
      message.moved += now;
      moved += now;
      if (message.moved < sizeof(frame))
        break;
    }
    const size_t sent = message.moved - sizeof(frame);
    now = write_ring(to, message.data.data + sent, message.data.bytes - sent);
    message.moved += now;
    moved += now;
    if (message.moved < sizeof(frame) + message.data.bytes)
      break;
    finish(std::move(message), to, nullptr);
    queue.pop_front();
  }
  if (moved != 0)
    ring(to);
  return moved != 0;
}

bool Mailbox::pull(int from) {
  Incoming& message = incoming_[static_cast<size_t>(from)];
  size_t moved = 0;
  while (message.has_frame || wants_from(from)) {
    if (!message.has_frame) {
      const size_t now = read_ring(from,
                                   reinterpret_cast<std::byte*>(&message.frame) + message.read,
                                   sizeof(Frame) - message.read);
      message.read += now;
      moved += now;
      if (message.read < sizeof(Frame))
        break;
      message.has_frame = true;
      message.read = 0;
      message.wanted = std::find_if(receives_.begin(), receives_.end(), [&](const Pending& wanted) {
        return (wanted.peer == from || wanted.peer == kAnySource) &&
               wanted.tag == message.frame.tag && wanted.moved == 0;
      });
      message.is_wanted =
          message.wanted != receives_.end() && message.wanted->data.bytes == message.frame.bytes;
      if (message.is_wanted) {
        message.wanted->moved = 1;  // taken
        message.wanted->peer = from;
      }
      if (!message.is_wanted)
        message.stray.resize(message.frame.bytes);
    }
    std::byte* const to = message.is_wanted ? message.wanted->data.data : message.stray.data();
    const size_t now = read_ring(from, to + message.read, message.frame.bytes - message.read);
    message.read += now;
    moved += now;
    if (message.read < message.frame.bytes)
      break;
    finish_incoming(from);
  }
  if (moved != 0)
    ring(from);
  return moved != 0;
}

void Mailbox::finish_incoming(int from) {
  Incoming message = std::exchange(incoming_[static_cast<size_t>(from)], Incoming{});
  if (message.is_wanted) {
    finish(std::move(*message.wanted), from, nullptr);
    receives_.erase(message.wanted);
    return;
  }
  strays_[static_cast<size_t>(from)].push_back(
      {.tag = message.frame.tag, .data = std::move(message.stray)});
  for (auto wanted = receives_.begin(); wanted != receives_.end();) {
    const auto next = std::next(wanted);
    if (wanted->moved == 0 && give_stray(wanted))
      return;
    wanted = next;
  }
}

// A message that came before it was asked for, if there is one.
bool Mailbox::give_stray(std::list<Pending>::iterator wanted) {
  for (int peer = 0; peer < team_.size(); ++peer) {
    if (wanted->peer != peer && wanted->peer != kAnySource)
      continue;
    auto& strays = strays_[static_cast<size_t>(peer)];
    const auto found = std::find_if(
        strays.begin(), strays.end(), [&](const Stray& stray) { return stray.tag == wanted->tag; });
    if (found == strays.end())
      continue;
    std::exception_ptr error;
    if (found->data.size() == wanted->data.bytes) {
      if (!found->data.empty())
        std::memcpy(wanted->data.data, found->data.data(), found->data.size());
    } else {
      error = std::make_exception_ptr(Error(ErrorCode::invalid_argument,
                                            cat("recv: expected ",
                                                wanted->data.bytes,
                                                " bytes from rank ",
                                                team_.name(peer),
                                                " with tag ",
                                                wanted->tag,
                                                ", got ",
                                                found->data.size(),
                                                " (rank ",
                                                team_.name(team_.rank()),
                                                "); make the sender's tensor as large")));
    }
    strays.erase(found);
    finish(std::move(*wanted), peer, error);
    receives_.erase(wanted);
    return true;
  }
  return false;
}

// A message from this rank that has come, wholly or in part, is still received when the rank has
// ended.
bool Mailbox::has_unread(int from) const {
  const ChannelWords& channel = words(from, team_.rank());
  return channel.written.load() != channel.read.load();
}

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
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (rank != team_.rank() && (lives(rank) || has_unread(rank)))
      return "";
  }
  return "no other rank is left";
}

bool Mailbox::fail_late_and_lost() {
  bool any = false;
  const auto why = [&](const Pending& pending, bool is_send) -> std::exception_ptr {
    const std::string lost = why_lost(pending, is_send);
    const bool late = pending.deadline.passed();
    if (lost.empty() && !late)
      return nullptr;
    const std::string where =
        cat(is_send ? "send to" : "recv from",
            " ",
            pending.peer == kAnySource ? std::string("any rank")
                                       : cat("rank ", team_.name(pending.peer)),
            " (tag ",
            pending.tag,
            ") ",
            team_.here());
    if (lost.empty()) {
      return std::make_exception_ptr(
          Error(ErrorCode::timeout,
                cat(where,
                    ": Timed out waiting ",
                    pending.deadline.limit().count(),
                    "ms; see what that rank does, or give a longer timeout")));
    }
    return std::make_exception_ptr(
        Error(ErrorCode::peer_failed,
              cat(where, ": ", lost, "; the first rank that failed has the cause")));
  };
  for (auto& queue : sends_) {
    while (!queue.empty()) {
      const auto error = why(queue.front(), true);
      if (!error)
        break;
      if (queue.front().moved != 0)
        team_.give_up();  // the channel ends in the middle of a message
      fail(queue.front(), error);
      queue.pop_front();
      any = true;
    }
  }
  for (auto wanted = receives_.begin(); wanted != receives_.end();) {
    const auto error = why(*wanted, false);
    if (!error) {
      ++wanted;
      continue;
    }
    for (Incoming& message : incoming_) {
      if (!message.is_wanted || message.wanted != wanted)
        continue;
      // It goes on as one that nobody has asked for yet.
      message.is_wanted = false;
      message.stray.resize(message.frame.bytes);
      if (message.read != 0)
        std::memcpy(message.stray.data(), wanted->data.data, message.read);
    }
    fail(*wanted, error);
    wanted = receives_.erase(wanted);
    any = true;
  }
  return any;
}

}  // namespace muster::shm
