// The messages between a pipeline's ranks: activations forward, gradients back. Used only by
// pipeline.cc.
//
// Between two ranks each direction is its own queue, and a receiver takes messages in the order of
// the sender's schedule, which it knows. So neither direction waits for the other, if each
// direction has its own communicator. (NCCL pairs operations by their order, and would otherwise
// pair a send with a send.)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"
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

struct TensorForm {
  std::vector<int64_t> sizes;
  at::ScalarType type;
  bool operator==(const TensorForm&) const = default;
};
TensorForm form_of(const at::Tensor& tensor);
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
  void send(const PipelineMessage& message, const at::Tensor& tensor);

  // Starts receives that can be started without waiting.
  void expect(const PipelineMessage& message);

  // Blocking: until the message has arrived.
  at::Tensor receive(const PipelineMessage& message);

  // Blocking: until everything sent has left.
  void finish_sends();

  int64_t bytes_sent() const { return bytes_sent_; }  // since begin_step()
  int64_t sent() const { return sent_; }
  double waited_seconds() const { return waited_; }

 private:
  struct Transfer {
    Work work;
    at::Tensor tensor;
  };
  int sender(const PipelineMessage& message) const;
  int receiver(const PipelineMessage& message) const;
  ProcessGroup& channel(int from, int to) { return from < to ? channels_.up : channels_.down; }
  ProcessGroup& group() { return channels_.group; }
  int tag_of(const PipelineMessage& message) const;
  bool begin_next(int from, bool may_wait);
  void connect(const PipelineSchedule& schedule);
  void send_form(const PipelineMessage& message, const TensorForm& form);
  TensorForm receive_form(const PipelineMessage& message);

  PipelineChannels channels_;
  int ranks_, stages_, micro_batches_;
  std::vector<std::vector<PipelineMessage>> order_;  // from each rank to this one
  std::vector<size_t> begun_;                        // of order_
  std::map<PipelineMessage, Transfer> receiving_;
  std::map<PipelineMessage, at::Tensor> local_;
  std::deque<Transfer> sending_;
  std::vector<std::optional<TensorForm>> forms_;  // of activations into each stage
  int64_t bytes_sent_ = 0, sent_ = 0;
  double waited_ = 0;
};

}  // namespace muster
