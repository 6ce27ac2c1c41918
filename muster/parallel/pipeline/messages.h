// The messages between a pipeline's ranks: activations forward, gradients back. Used only by
// pipeline.cc.
//
// A receiver takes messages in the order of the sender's schedule, which it knows. NCCL pairs
// operations by their order, and would pair a send with a send: so the directions have a
// communicator each. A rank's sends and receives on one of them wait for one another
// (message_order.h), and schedules that would wait forever are refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/pipeline/message_order.h"
#include "muster/parallel/pipeline/schedule.h"

namespace muster {

struct TensorForm {
  Int64s sizes;
  ScalarType type;
  bool operator==(const TensorForm&) const = default;
};
TensorForm form_of(const Tensor& tensor);
std::string to_text(const TensorForm& form);  // "Float [4, 8]"

// The groups that carry messages to later ranks and to earlier ones.
struct PipelineChannels {
  ProcessGroup group, up, down;
};

class PipelineMessages {
 public:
  // Makes the channels, and connects the ranks. Collective: over `group`.
  PipelineMessages(ProcessGroup group, const PipelineSchedule& schedule);
  // Another schedule over channels that are there. All messages of one must have been received
  // before the other begins a step.
  PipelineMessages(const PipelineChannels& channels, const PipelineSchedule& schedule);

  const PipelineChannels& channels() const { return channels_; }

  // All messages of a step must have been received before the next step starts.
  void begin_step();

  // Returns at once; sends nothing between two stages of this rank. The first activation into a
  // stage also carries its form. Throws: invalid_argument if a later one has another form.
  void send(const PipelineMessage& message, const Tensor& tensor);

  // Starts the receive of what `next` needs before `action` sends, if that can be done without
  // waiting, and keeps nothing waiting.
  void expect(const PipelineAction& action, const PipelineAction& next);

  // Blocking: until the message has arrived.
  Tensor receive(const PipelineMessage& message);

  // Blocking: until everything sent has left.
  void finish_sends();

  int64_t bytes_sent() const { return bytes_sent_; }  // since begin_step()
  int64_t sent() const { return sent_; }
  double waited_seconds() const { return waited_; }

 private:
  struct Transfer {
    Work work;
    Tensor tensor;
  };
  ProcessGroup& channel(int from, int to) { return from < to ? channels_.up : channels_.down; }
  ProcessGroup& group() { return channels_.group; }
  int tag_of(const PipelineMessage& message) const;
  int sender(const PipelineMessage& message) const { return sender_of(message, schedule_); }
  int receiver(const PipelineMessage& message) const { return receiver_of(message, schedule_); }
  bool begin_next(int from, bool may_wait);
  void connect(const PipelineSchedule& schedule);
  void send_form(const PipelineMessage& message, const TensorForm& form);
  TensorForm receive_form(const PipelineMessage& message);

  PipelineChannels channels_;
  PipelineSchedule schedule_;
  bool matches_by_order_;
  std::vector<std::vector<PipelineMessage>> order_;  // from each rank to this one
  Indices begun_;                                    // of order_
  std::map<PipelineMessage, Transfer> receiving_;
  std::map<PipelineMessage, Tensor> local_;
  std::deque<Transfer> sending_;
  std::vector<std::optional<TensorForm>> forms_;  // of activations into each stage
  int64_t bytes_sent_ = 0, sent_ = 0;
  double waited_ = 0;
};

}  // namespace muster
