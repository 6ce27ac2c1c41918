// A message is an envelope and, where it is too long to lie in that, a content that follows at
// once. The envelope has the frame, and room for whatever may come in one. All parts are given to
// Gloo by the call itself, so that neither side's wait needs the other side's.
//
// Gloo matches a send and a receive by a number that is the same on both sides, its slot, and ends
// the process where more comes than is expected. So a content's slot depends on its length too:
// contents of different lengths do not meet. When the envelope shows another message than the one
// expected, its content is received aside, which lets the sender go on. The receive of the expected
// content stays behind in Gloo, where the next such content would go to it: then nothing more is
// received.
#include "muster/comm/hierarchical/gloo_messages.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/shm/mailbox.h"

namespace muster {

namespace {

using shm::MessageFrame;

// What goes in the envelope: to copy that is cheaper than another message of Gloo's.
constexpr int64_t kRoom = 32 << 10;
constexpr int64_t kFrame = sizeof(MessageFrame);

bool lies_in_envelope(const MessageFrame& frame) {
  return std::cmp_less_equal(frame.bytes, kRoom);
}

// A slot has 31 bits, as a tag has: too few for a tag and a length. Tags that differ by a multiple
// of kTags share their slots, and the envelope tells them apart: messages of theirs that are
// received in another order than they were sent in are an error.
constexpr int kTags = 1'048'573;  // a prime below 2^20
constexpr int kLengthBits = 10;
constexpr int kContents = 1 << 30;
int slot_of_envelope(const MessageFrame& frame) {
  return static_cast<int>(frame.tag % kTags);
}
int slot_of_content(const MessageFrame& frame) {
  const uint64_t mixed = frame.bytes * 0x9E37'79B9'7F4A'7C15;
  return kContents | slot_of_envelope(frame) << kLengthBits |
         static_cast<int>(mixed >> (64 - kLengthBits));
}

uint8_t* room_in(const Tensor& envelope) {
  return envelope.mutable_data_ptr<uint8_t>() + kFrame;
}
void copy_memory(void* to, const void* from, size_t bytes) {
  if (bytes != 0)
    std::memcpy(to, from, bytes);
}

WorkPtr start_receive(c10d::Backend& gloo, const Tensor& memory, int from, int slot) {
  Tensors tensors{memory};
  return from == shm::kAnySource ? gloo.recvAnysource(tensors, slot)
                                 : gloo.recv(tensors, from, slot);
}

// The time that one wait has for several of Gloo's.
class Patience {
 public:
  explicit Patience(milliseconds limit) : limit_(limit), deadline_(limit) {}
  milliseconds left() const {
    return limit_ == kNoTimeout ? kNoTimeout : std::max(deadline_.left(), milliseconds(1));
  }

 private:
  milliseconds limit_;
  Deadline deadline_;
};

}  // namespace

// A work that waits once: Gloo's wait for the next message where theirs is over.
class GlooMessages::WaitedOnce : public c10d::Work {
 public:
  using Work::Work;

  bool wait(milliseconds timeout) final {
    const Lock lock(waiting_);
    if (isCompleted()) {
      if (const auto error = exception())
        std::rethrow_exception(error);
      return true;
    }
    try {
      if (!wait_for_all(Patience(timeout)))
        return false;
    } catch (...) {
      finishAndThrow(std::current_exception());
    }
    finish();
    return true;
  }

 protected:
  // False when a wait of Gloo's was aborted; a later one goes on behind what has come.
  virtual bool wait_for_all(const Patience& patience) = 0;

 private:
  std::mutex waiting_;
};

class GlooMessages::Sending : public WaitedOnce {
 public:
  explicit Sending(std::vector<WorkPtr> parts)
      : WaitedOnce(-1, OpType::SEND), parts_(std::move(parts)) {}

  uint64_t getSequencenumber() const override { return parts_[0]->getSequencenumber(); }
  void abort() override {
    for (const WorkPtr& part : parts_)
      part->abort();
  }

 private:
  bool wait_for_all(const Patience& patience) override {
    for (; sent_ < parts_.size(); ++sent_) {
      if (!parts_[sent_]->wait(patience.left()))
        return false;
    }
    return true;
  }

  const std::vector<WorkPtr> parts_;
  size_t sent_ = 0;
};

// A message that was asked for.
struct GlooMessages::Received {
  MessageFrame wanted, sent;
  int from = 0;  // or shm::kAnySource
  Tensor envelope;
  WorkPtr of_envelope, of_content;   // no content where the one expected lies in the envelope
  std::shared_ptr<Received> before;  // asked for of the same rank, with the same content's slot

  // Whether the receive of the expected content gets what was sent instead.
  bool content_is_taken() const {
    return of_content && !lies_in_envelope(sent) &&
           slot_of_content(sent) == slot_of_content(wanted);
  }

  std::mutex mutex;
  bool open = false;  // the envelope has come
};

// What the messages of a group have in common, also with those that outlive it.
struct GlooMessages::Shared {
  using Key = std::pair<int, int>;  // from, and the content's slot

  Shared(c10::weak_intrusive_ptr<c10d::Backend> gloo, int rank, RankNames names)
      : gloo(std::move(gloo)), rank(rank), names(std::move(names)) {}

  const c10::weak_intrusive_ptr<c10d::Backend> gloo;
  const int rank;
  const RankNames names;

  std::mutex mutex;
  std::map<Key, std::shared_ptr<Received>> last;  // of those whose envelope nobody has opened
  std::vector<WorkPtr> left_behind;               // in Gloo, which may still use their memory
  std::atomic<bool> given_up = false;

  void expect_whole() const {
    if (!given_up)
      return;
    throw failed_precondition(
        "recv: expected a group in which no message was given up, got one in which an "
        "earlier message was not as its receiver expected (rank ",
        names[rank],
        "); make a new one");
  }
  void leave_behind(WorkPtr work) {
    const Lock lock(mutex);
    left_behind.push_back(std::move(work));
  }
  bool open(const std::shared_ptr<Received>& message, const Patience& patience);
};

// Those that were asked for before come first: what they leave behind would take this one's
// content. False when the wait was aborted.
bool GlooMessages::Shared::open(const std::shared_ptr<Received>& message,
                                const Patience& patience) {
  const Lock lock(message->mutex);
  if (message->open)
    return true;
  if (message->before && !open(message->before, patience))
    return false;
  if (!message->of_envelope->wait(patience.left()))
    return false;
  std::memcpy(&message->sent, message->envelope.const_data_ptr(), kFrame);
  message->open = true;
  message->before.reset();
  if (!message->of_content)
    return true;
  if (!fits(message->wanted, message->sent) && !message->content_is_taken()) {
    given_up = true;
    leave_behind(message->of_content);
  }
  const Lock lock_of_all(mutex);
  const Key key{message->from, slot_of_content(message->wanted)};
  if (find_or(last, key) == message)
    last.erase(key);
  return true;
}

class GlooMessages::Receiving : public WaitedOnce {
 public:
  Receiving(std::shared_ptr<Shared> shared, std::shared_ptr<Received> message, Tensor memory)
      : WaitedOnce(-1, message->of_envelope->retrieveOpType()),
        shared_(std::move(shared)),
        message_(std::move(message)),
        memory_(std::move(memory)) {}

  uint64_t getSequencenumber() const override { return message_->of_envelope->getSequencenumber(); }
  int sourceRank() const override {
    return message_->of_content ? message_->of_content->sourceRank() : source_of_envelope();
  }
  void abort() override {
    message_->of_envelope->abort();
    if (message_->of_content)
      message_->of_content->abort();
  }

 private:
  bool wait_for_all(const Patience& patience) override {
    if (!shared_->open(message_, patience))
      return false;
    if (!fits(message_->wanted, message_->sent)) {
      take_aside(patience);
      const auto& names = shared_->names;
      throw misfit(
          message_->wanted, message_->sent, names[source_of_envelope()], names[shared_->rank]);
    }
    if (message_->of_content) {
      shared_->expect_whole();
      return message_->of_content->wait(patience.left());
    }
    copy_memory(memory_.mutable_data_ptr(), room_in(message_->envelope), memory_.nbytes());
    return true;
  }

  int source_of_envelope() const { return message_->of_envelope->sourceRank(); }

  // The caller is told of the wrong message, whether or not its content still comes.
  void take_aside(const Patience& patience) {
    if (lies_in_envelope(message_->sent))
      return;
    try {
      WorkPtr work;
      if (message_->content_is_taken()) {
        work = message_->of_content;
      } else if (const auto gloo = shared_->gloo.lock()) {
        const auto bytes = static_cast<int64_t>(message_->sent.bytes);
        work = start_receive(*gloo,
                             at::empty({bytes}, kByte),
                             source_of_envelope(),
                             slot_of_content(message_->sent));
      }
      if (work && !work->wait(patience.left()))
        shared_->leave_behind(work);
    } catch (const std::exception&) {
      // Its sender has gone, or waits.
    }
  }

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Received> message_;
  const Tensor memory_;
};

GlooMessages::GlooMessages(const BackendPtr& gloo, RankNames names)
    : shared_(std::make_shared<Shared>(
          c10::weak_intrusive_ptr<c10d::Backend>(gloo),
          gloo->getRank(),
          names.ranks.empty() ? RankNames::of_all(gloo->getSize()) : std::move(names))) {}

WorkPtr GlooMessages::send(const Tensor& memory, const MessageFrame& frame, int to) {
  const int64_t in_envelope = lies_in_envelope(frame) ? memory.numel() * memory.element_size() : 0;
  Tensor envelope = at::empty({kFrame + in_envelope}, kByte);
  std::memcpy(envelope.mutable_data_ptr(), &frame, kFrame);
  copy_memory(room_in(envelope), memory.const_data_ptr(), in_envelope);
  const auto gloo = shared_->gloo.lock();
  Tensors one{envelope};
  std::vector<WorkPtr> parts{gloo->send(one, to, slot_of_envelope(frame))};
  if (!lies_in_envelope(frame)) {
    one = {memory};
    parts.push_back(gloo->send(one, to, slot_of_content(frame)));
  }
  return c10::make_intrusive<Sending>(std::move(parts));
}

WorkPtr GlooMessages::receive(const Tensor& memory, const MessageFrame& wanted, int from) {
  shared_->expect_whole();
  const auto gloo = shared_->gloo.lock();
  auto message = std::make_shared<Received>();
  message->wanted = wanted;
  message->from = from;
  message->envelope = at::empty({kFrame + kRoom}, kByte);
  // Two threads' parts do not mix.
  const Lock lock(shared_->mutex);
  message->of_envelope = start_receive(*gloo, message->envelope, from, slot_of_envelope(wanted));
  if (!lies_in_envelope(wanted)) {
    const int slot = slot_of_content(wanted);
    message->of_content = start_receive(*gloo, memory, from, slot);
    message->before = std::exchange(shared_->last[{from, slot}], message);
  }
  return c10::make_intrusive<Receiving>(shared_, message, memory);
}

}  // namespace muster
