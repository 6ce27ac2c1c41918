// The check over NCCL fills the queues as PipelineMessages does, and then lets computations and
// messages pass until nothing moves. A receive stands behind the computations that its rank has
// begun, and a send behind the one that made it, as the streams of a GPU have it.
#include "muster/parallel/pipeline/message_order.h"

#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using ActionKind = PipelineAction::Kind;

// What a rank sends or receives, once it has done `after` of its actions.
struct Transfer {
  bool is_send;
  PipelineMessage message;
  size_t after;
};

struct Queue {
  const Transfer* first(size_t actions_done) const {
    const bool is_ready = passed < transfers.size() && transfers[passed].after <= actions_done;
    return is_ready ? &transfers[passed] : nullptr;
  }

  std::vector<Transfer> transfers = {};
  size_t passed = 0;
};

constexpr size_t kUp = 0;
constexpr size_t kDown = 1;

size_t way_of(const PipelineMessage& message, const PipelineSchedule& schedule) {
  return sender_of(message, schedule) < receiver_of(message, schedule) ? kUp : kDown;
}

bool travels(const std::optional<PipelineMessage>& message, const PipelineSchedule& schedule) {
  return message && sender_of(*message, schedule) != receiver_of(*message, schedule);
}

struct RankInQueues {
  std::array<Queue, 2> queues = {};  // up, down
  size_t done = 0;                   // actions
};

class QueuedStep {
 public:
  // In the first step ranks do not know the shapes yet that go into each stage.
  QueuedStep(const PipelineSchedule& schedule, bool is_first)
      : schedule_(schedule), is_first_(is_first), ranks_(schedule.actions.size()) {
    for (const int rank : indices_below(schedule.ranks))
      fill_queues_of(rank);
  }

  // Until nothing moves. Returns where ranks wait then; empty: the step has ended.
  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const size_t rank : indices_of(ranks_)) {
        while (act(rank))
          moved = true;
        for (const size_t way : {kUp, kDown}) {
          while (send(rank, way))
            moved = true;
        }
      }
    }
    return waiting();
  }

 private:
  // The receives of each sender's messages come in the order of its sends. None is begun ahead
  // whose shape is not known.
  void fill_queues_of(int rank) {
    const auto& actions = schedule_.actions[rank];
    Receives receives{.senders = senders_to(rank),
                      .begun = Indices(schedule_.ranks),
                      .is_known = std::vector<bool>(schedule_.stages, !is_first_)};
    for (const size_t i : indices_of(actions)) {
      if (i + 1 < actions.size() && may_receive_ahead(actions[i], actions[i + 1], schedule_))
        receive(rank, needed_by(actions[i + 1], schedule_), i, /*is_ahead=*/true, receives);
      receive(rank, needed_by(actions[i], schedule_), i, /*is_ahead=*/false, receives);
      const auto made = made_by(actions[i], schedule_);
      if (made)
        receives.is_known[made->stage] = true;
      if (travels(made, schedule_))
        push(rank, {.is_send = true, .message = *made, .after = i + 1});
    }
  }

  // What a rank receives, while its queues are filled.
  struct Receives {
    std::vector<std::vector<PipelineMessage>> senders;  // the messages to it, by sender
    Indices begun;                                      // of each sender's
    std::vector<bool> is_known;                         // the shape of each stage's
    std::set<PipelineMessage> received = {};
  };

  std::vector<std::vector<PipelineMessage>> senders_to(int rank) const {
    std::vector<std::vector<PipelineMessage>> senders(schedule_.ranks);
    for (const int from : indices_below(schedule_.ranks)) {
      for (const PipelineAction& action : schedule_.actions[from]) {
        const auto made = made_by(action, schedule_);
        if (travels(made, schedule_) && receiver_of(*made, schedule_) == rank)
          senders[from].push_back(*made);
      }
    }
    return senders;
  }

  void receive(int rank,
               const std::optional<PipelineMessage>& wanted,
               size_t after,
               bool is_ahead,
               Receives& receives) {
    if (!travels(wanted, schedule_))
      return;
    const int from = sender_of(*wanted, schedule_);
    while (!receives.received.contains(*wanted)) {
      const PipelineMessage& next = receives.senders[from].at(receives.begun[from]);
      if (is_ahead && !receives.is_known[next.stage])
        return;
      ++receives.begun[from];
      receives.is_known[next.stage] = true;
      receives.received.insert(next);
      push(rank, {.is_send = false, .message = next, .after = after});
    }
  }

  void push(int rank, const Transfer& transfer) {
    ranks_[rank].queues[way_of(transfer.message, schedule_)].transfers.push_back(transfer);
  }

  // Whether the rank could do its next action.
  bool act(size_t rank) {
    const auto& actions = schedule_.actions[rank];
    size_t& done = ranks_[rank].done;
    if (done == actions.size())
      return false;
    const auto needed = needed_by(actions[done], schedule_);
    if (travels(needed, schedule_) && !arrived_.contains(*needed))
      return false;
    ++done;
    return true;
  }

  // Whether the first in the rank's queue is a send whose receive is the first at its other end.
  bool send(size_t rank, size_t way) {
    Queue& from = ranks_[rank].queues[way];
    const Transfer* const sent = from.first(ranks_[rank].done);
    if (sent == nullptr || !sent->is_send)
      return false;
    RankInQueues& other = ranks_[receiver_of(sent->message, schedule_)];
    Queue& to = other.queues[way];
    const Transfer* const received = to.first(other.done);
    if (received == nullptr || received->is_send || received->message != sent->message)
      return false;
    arrived_.insert(sent->message);
    ++from.passed;
    ++to.passed;
    return true;
  }

  // The last messages of a rank that has done all may wait for others, which are named then.
  std::string waiting() const {
    Strings places;
    for (const size_t rank : indices_of(ranks_)) {
      const size_t done = ranks_[rank].done;
      if (done < schedule_.actions[rank].size())
        places.push_back(
            cat("rank ", rank, " at ", to_text(schedule_.actions[rank][done], schedule_)));
    }
    return join_first(places, ", ", 8);
  }

  const PipelineSchedule& schedule_;
  const bool is_first_;
  std::vector<RankInQueues> ranks_;
  std::set<PipelineMessage> arrived_;
};

void check_queues(const PipelineSchedule& schedule, const std::string& of_what) {
  const std::string in_first = QueuedStep(schedule, /*is_first=*/true).run();
  const std::string waiting =
      in_first.empty() ? QueuedStep(schedule, /*is_first=*/false).run() : in_first;
  if (waiting.empty())
    return;
  throw invalid_argument(
      "pipeline schedule ",
      schedule.name,
      ": expected an order in which ",
      of_what,
      " end over NCCL, where the sends and receives of a rank to and from earlier, or "
      "later, ranks wait for one another, got ranks that wait for ever: ",
      waiting,
      "; do micro-batches in the same order at all stages, or train on CPUs");
}

// The action's message between this stage and the one before it, where both are there.
std::optional<PipelineMessage> message_into(int stage,
                                            const PipelineAction& action,
                                            const PipelineSchedule& schedule) {
  if (stage == 0 || stage == schedule.stages || action.kind == ActionKind::weight_grad)
    return std::nullopt;
  return PipelineMessage{action.kind != ActionKind::forward, stage, action.micro_batch};
}

}  // namespace

// It returns the message that must come before the action, or nothing where none is needed.
std::optional<PipelineMessage> needed_by(const PipelineAction& action,
                                         const PipelineSchedule& schedule) {
  return message_into(
      action.stage + (action.kind == ActionKind::forward ? 0 : 1), action, schedule);
}

// A message is named by the later of its two stages, as in needed_by(), so both sides name it
// alike.
std::optional<PipelineMessage> made_by(const PipelineAction& action,
                                       const PipelineSchedule& schedule) {
  return message_into(
      action.stage + (action.kind == ActionKind::forward ? 1 : 0), action, schedule);
}

// A gradient comes from its stage itself, and an activation from the stage before.
int sender_of(const PipelineMessage& message, const PipelineSchedule& schedule) {
  return schedule.rank_of(message.is_gradient ? message.stage : message.stage - 1);
}

int receiver_of(const PipelineMessage& message, const PipelineSchedule& schedule) {
  return schedule.rank_of(message.is_gradient ? message.stage - 1 : message.stage);
}

PipelineSchedule forwards_of(PipelineSchedule schedule) {
  for (auto& actions : schedule.actions)
    std::erase_if(actions,
                  [](const PipelineAction& action) { return action.kind != ActionKind::forward; });
  return schedule;
}

// A queue is that of a direction.
bool may_receive_ahead(const PipelineAction& action,
                       const PipelineAction& next,
                       const PipelineSchedule& schedule) {
  const auto made = made_by(action, schedule);
  const auto needed = needed_by(next, schedule);
  if (!travels(made, schedule) || !travels(needed, schedule))
    return true;
  return way_of(*made, schedule) != way_of(*needed, schedule);
}

void check_over_nccl(const PipelineSchedule& schedule) {
  check_queues(schedule, "all steps");
  check_queues(forwards_of(schedule), "all evaluations");
}

}  // namespace muster
