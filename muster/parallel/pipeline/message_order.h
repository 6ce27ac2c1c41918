// Which messages a pipeline's ranks exchange, and in which order: pure, like the schedules.
//
// A backend that matches messages by their order alone (NCCL) has one queue of sends and receives
// for each rank and communicator. There is a communicator for messages to later ranks and one for
// those to earlier ones. What stands in a queue waits for what stands before it, and a message
// passes when it is the first at both of its ends; only one that fits into a buffer may go before
// its receive. So a schedule that ends where messages have tags may wait forever there.
#pragma once

#include <compare>
#include <optional>

#include "muster/parallel/pipeline/schedule.h"

namespace muster {

// An activation on its way into `stage`, or its gradient on the way back.
struct PipelineMessage {
  bool is_gradient;
  int stage;
  int micro_batch;
  auto operator<=>(const PipelineMessage&) const = default;
};

// The message that `action` needs from, or gives to, another stage; nothing at the pipeline's ends.
std::optional<PipelineMessage> needed_by(const PipelineAction& action,
                                         const PipelineSchedule& schedule);
std::optional<PipelineMessage> made_by(const PipelineAction& action,
                                       const PipelineSchedule& schedule);

int sender_of(const PipelineMessage& message, const PipelineSchedule& schedule);
int receiver_of(const PipelineMessage& message, const PipelineSchedule& schedule);

// The schedule of an evaluation: the forwards alone, in the same order.
PipelineSchedule forwards_of(PipelineSchedule schedule);

// Whether the receive of what `next` needs may stand before what `action` sends: not in one queue,
// where the send would wait for a message that may depend on it.
bool may_receive_ahead(const PipelineAction& action,
                       const PipelineAction& next,
                       const PipelineSchedule& schedule);

// Throws: invalid_argument naming where the ranks wait, for a schedule whose steps or evaluations
// wait forever over NCCL if no message fits into a buffer. check() must have passed it.
void check_over_nccl(const PipelineSchedule& schedule);

}  // namespace muster
