// The messages of a pipeline, in the order of the sender's schedule, which the receiver knows.
// Shapes travel once: a form precedes the first activation into a stage, and gradients have the
// activation's. Between two stages of one rank a tensor is only put into a map.
#include "muster/parallel/pipeline/messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/comm/capabilities.h"
#include "muster/parallel/tensor_bytes.h"

namespace muster {

namespace {

// A form's message has a fixed length, so its receiver can wait for it without knowing the form.
constexpr int64_t kMostDimensions = 14;

// A backend that matches sends and receives by their order alone needs a group for each direction,
// which nothing else uses; otherwise both use one.
ProcessGroup one_way(ProcessGroup& group) {
  if (!capabilities_of(group.backend()).matches_by_order || group.size() == 1)
    return group;
  return *group.new_group(numbers_below(group.size()));
}

// The members are made in their order, which is the same on all ranks.
PipelineChannels channels_over(ProcessGroup group) {
  return {.group = group, .up = one_way(group), .down = one_way(group)};
}

}  // namespace

TensorForm form_of(const Tensor& tensor) {
  return {.sizes = tensor.sizes().vec(), .type = tensor.scalar_type()};
}

std::string to_text(const TensorForm& form) {
  return cat(toString(form.type), " [", join(form.sizes, ", "), "]");
}

// All ranks construct it together, since a group may be made for each of the directions.
PipelineMessages::PipelineMessages(ProcessGroup group, const PipelineSchedule& schedule)
    : PipelineMessages(channels_over(std::move(group)), schedule) {
  if (matches_by_order_)
    connect(schedule);
}

PipelineMessages::PipelineMessages(const PipelineChannels& channels,
                                   const PipelineSchedule& schedule)
    : channels_(channels),
      schedule_(schedule),
      matches_by_order_(capabilities_of(group().backend()).matches_by_order),
      order_(schedule.ranks),
      begun_(order_.size(), 0),
      forms_(schedule.stages) {
  for (const int from : indices_below(schedule.ranks)) {
    if (from == group().rank())
      continue;
    for (const PipelineAction& action : schedule.actions[from]) {
      const auto message = made_by(action, schedule);
      if (message && receiver(*message) == group().rank())
        order_[from].push_back(*message);
    }
  }
}

// NCCL connects two ranks at their first message, for which the host waits, and which may wait for
// all that the GPU is at. A receive that was started ahead would be among that. So each pair of
// ranks exchanges a number now, one after the other.
void PipelineMessages::connect(const PipelineSchedule& schedule) {
  std::set<std::pair<int, int>> pairs;
  for (const auto& actions : schedule.actions) {
    for (const PipelineAction& action : actions) {
      const auto message = made_by(action, schedule);
      if (message && sender(*message) != receiver(*message))
        pairs.emplace(sender(*message), receiver(*message));
    }
  }
  const Tensor number = at::zeros({1}, at::TensorOptions(group().device()));
  for (const auto& [from, to] : pairs) {
    if (from == group().rank())
      channel(from, to).send(number, to);
    else if (to == group().rank())
      channel(from, to).recv(number, from);
    group().wait_for_gpu();
  }
}

// Each message has a tag of its own: activations first, then gradients, and forms behind both.
int PipelineMessages::tag_of(const PipelineMessage& message) const {
  return ((message.is_gradient ? schedule_.stages : 0) + message.stage) * schedule_.micro_batches +
         message.micro_batch;
}

// The forms stay, since shapes are the same in every step.
void PipelineMessages::begin_step() {
  begun_.assign(begun_.size(), 0);
  bytes_sent_ = sent_ = 0;
  waited_ = 0;
}

// It waits for no receiver, and keeps the tensor until its message has left.
void PipelineMessages::send(const PipelineMessage& message, const Tensor& tensor) {
  auto& known = forms_[message.stage];
  const TensorForm form = form_of(tensor);
  const bool first = !known.has_value();
  if (first)
    known = form;
  if (form != *known) {
    throw invalid_argument("pipeline: expected ",
                           message.is_gradient ? "a gradient" : "an activation",
                           " of ",
                           to_text(*known),
                           " into stage ",
                           message.is_gradient ? message.stage - 1 : message.stage,
                           ", as in the first micro-batch, got ",
                           to_text(form),
                           " of micro-batch ",
                           message.micro_batch,
                           " (rank ",
                           group().job_rank(),
                           "); give every micro-batch the same shape, by padding for instance");
  }
  const int to = receiver(message);
  if (to == group().rank()) {
    local_[message] = tensor;
    return;
  }
  if (first)
    send_form(message, form);
  // The content is held until it has left.
  const Tensor content = tensor.contiguous();
  sending_.push_back(
      {channel(group().rank(), to).send_async(content, to, tag_of(message)), content});
  bytes_sent_ += bytes_of_tensor(content);
  ++sent_;
  // Finished sends give back their memory here, and show their errors.
  while (!sending_.empty() && sending_.front().work.done()) {
    sending_.front().work.wait();
    sending_.pop_front();
  }
}

// The receiver calls receive_form() for the same stage, before its first activation.
void PipelineMessages::send_form(const PipelineMessage& message, const TensorForm& form) {
  const auto dimensions = std::ssize(form.sizes);
  if (dimensions > kMostDimensions) {
    throw invalid_argument("pipeline: expected activations of at most ",
                           kMostDimensions,
                           " dimensions, got ",
                           to_text(form),
                           " (rank ",
                           group().job_rank(),
                           "); flatten some");
  }
  Tensor header = at::empty({kMostDimensions + 2}, kLong).fill_(0);
  auto* const words = header.data_ptr<int64_t>();
  words[0] = static_cast<int64_t>(form.type);
  words[1] = dimensions;
  std::ranges::copy(form.sizes, words + 2);
  const int to = receiver(message);
  const int tag = 2 * schedule_.stages * schedule_.micro_batches + message.stage;
  sending_.push_back({channel(group().rank(), to).send_async(header, to, tag), header});
}

// It blocks until the sender has its first output, whose form it sends.
TensorForm PipelineMessages::receive_form(const PipelineMessage& message) {
  const Tensor header = at::empty({kMostDimensions + 2}, kLong);
  const int from = sender(message);
  channel(from, group().rank())
      .recv(header, from, 2 * schedule_.stages * schedule_.micro_batches + message.stage);
  const auto* const words = header.const_data_ptr<int64_t>();
  return {.sizes = {words + 2, words + 2 + words[1]}, .type = static_cast<ScalarType>(words[0])};
}

// Starts the next receive from a rank. Its form may have to come first, which is waited for only if
// `may_wait`.
bool PipelineMessages::begin_next(int from, bool may_wait) {
  size_t& begun = begun_[from];
  const PipelineMessage& next = order_[from].at(begun);
  auto& form = forms_[next.stage];
  if (!form && !may_wait)
    return false;
  if (!form)
    form = receive_form(next);
  const Tensor buffer =
      at::empty(form->sizes, at::TensorOptions().dtype(form->type).device(group().device()));
  receiving_.emplace(
      next, Transfer{channel(from, group().rank()).recv_async(buffer, from, tag_of(next)), buffer});
  ++begun;
  return true;
}

// It only starts receives and never waits: what cannot start yet is left to receive(). A receive
// that would keep the action's own send waiting, and with it the next rank, comes after that.
void PipelineMessages::expect(const PipelineAction& action, const PipelineAction& next) {
  const auto message = needed_by(next, schedule_);
  if (!message || (matches_by_order_ && !may_receive_ahead(action, next, schedule_)))
    return;
  const int from = sender(*message);
  if (from == group().rank())
    return;
  while (!receiving_.contains(*message))
    if (!begin_next(from, /*may_wait=*/false))
      return;
}

// Receives are started in the sender's order until the wanted one is under way.
Tensor PipelineMessages::receive(const PipelineMessage& message) {
  const int from = sender(message);
  if (from == group().rank())
    return std::move(local_.extract(message).mapped());
  const auto start = Clock::now();
  while (!receiving_.contains(message))
    begin_next(from, /*may_wait=*/true);
  Transfer transfer = std::move(receiving_.extract(message).mapped());
  transfer.work.wait();
  waited_ += seconds_since(start);
  return transfer.tensor;
}

// All sends end with their step, so the next one starts with nothing on its way.
void PipelineMessages::finish_sends() {
  const auto start = Clock::now();
  for (; !sending_.empty(); sending_.pop_front())
    sending_.front().work.wait();
  waited_ += seconds_since(start);
}

}  // namespace muster
