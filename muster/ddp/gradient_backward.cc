// The backward side of a reducer. The first sign of a backward (an output's gradient or a
// parameter's) hangs a callback at the end of its graph. Gradients come one by one, and are refused
// where a forward has not announced them. At the end the ranks meet, the Reducer averages, and the
// step has ended.
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <memory>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/ddp/graph_end.h"
#include "muster/ddp/hook_adapter.h"
#include "muster/ddp/outputs.h"
#include "muster/ddp/reducer_state.h"

namespace muster {

// The caller holds the lock. Returns false where this rank's gradient may stay here.
bool GradientReducer::State::must_be_reduced(size_t index) {
  const bool awaited_by_another = live.another_awaits(model.trained().tensors[index]);
  const bool past_local_outputs = expected == Expected::local && !local_unseen && graph.expired();
  if (expected == Expected::nothing || past_local_outputs) {
    if (awaited_by_another)
      return false;
    refuse(index,
           past_local_outputs
               ? "no forward inside no_sync() and no forward that is reduced led to it"
               : "no forward through DistributedDataParallel led to it since the last reduction");
  }
  if (expected == Expected::local) {
    keep_local(index);
    return false;
  }
  return true;
}

// The caller holds the lock.
void GradientReducer::State::keep_local(size_t index) {
  accumulated = true;
  live.keep_gradients(true);
  if (group.size() > 1 && !local_step_said)
    local.note(model.trained().tensors[index], arrivals.name(index));
}

// The caller holds the lock.
void GradientReducer::State::drop_local() {
  accumulated = false;
  live.keep_gradients(false);
  local.forget();
}

void GradientReducer::State::on_gradient(size_t index) {
  const Lock lock(mutex);
  if (!must_be_reduced(index))
    return;
  if (as_views && live.another_awaits(model.trained().tensors[index])) {
    throw failed_precondition(
        "DistributedDataParallel: expected all models that share '",
        arrivals.name(index),
        "' to be wrapped before the forwards of their common backward, got one that "
        "was wrapped, or got it, after a forward (rank ",
        group.job_rank(),
        "); wrap them first, or set gradient_as_bucket_view = false");
  }
  on_backward();
  if (finds_unused() && torch::autograd::get_current_graph_task_id() != graph_id)
    refuse_from_inside(index);
  if (!used_by_last.empty() && used_by_last[index] == 0)
    refuse_of_earlier_forward(index);
  arrivals.check(index);
  if (!arrivals.any())
    views.take_back(model.trained().tensors);
  arrivals.note(index);
  if (index == model.trained().told_by)
    watch.take_gradient(model.trained().tensors[index].grad());
}

// The Reducer hears of a gradient only from the accumulator that the parameter had when it was
// built.
void GradientReducer::State::on_gradient_elsewhere(size_t index) {
  if (hooks.hear(index))
    return;
  const Lock lock(mutex);
  if (!must_be_reduced(index))
    return;
  throw failed_precondition(
      "DistributedDataParallel: expected the parameters to keep their memory from forward to "
      "backward, got a gradient of '",
      arrivals.name(index),
      "', which has another since (torch::load, set_(), to()), so this gradient would stay "
      "local (rank ",
      group.job_rank(),
      "); load and convert before forward");
}

// The Reducer looks for unused parameters in the graph of the outputs, which does not show what a
// layer that is computed again in backward will use: it has counted them as unused.
void GradientReducer::State::refuse_from_inside(size_t index) const {
  throw failed_precondition(
      "DistributedDataParallel: expected find_unused_parameters with layers that are "
      "not computed again in backward (checkpointed activations), got a gradient of '",
      arrivals.name(index),
      "' from a backward inside the backward (rank ",
      group.job_rank(),
      "); set static_graph instead, which allows both them and unused parameters");
}

// The Reducer counts as unused what the last forward's graph does not have.
void GradientReducer::State::refuse_of_earlier_forward(size_t index) const {
  throw failed_precondition(
      "DistributedDataParallel: expected find_unused_parameters with forwards that use the same "
      "parameters, where one backward is of several, got a gradient of '",
      arrivals.name(index),
      "', which the last forward does not use (rank ",
      group.job_rank(),
      "); run forward and backward of all but the last inside no_sync(), or compute everything in "
      "one forward");
}

void GradientReducer::State::refuse(size_t index, const char* why) const {
  throw failed_precondition(
      "DistributedDataParallel: backward reached '",
      arrivals.name(index),
      "', but ",
      why,
      ", so this gradient would stay local (rank ",
      group.job_rank(),
      "); sum the losses and call backward once, use no_sync(), or call model(batch) or "
      "model.forward(batch): model->forward(batch) is the module's own");
}

// The caller holds the lock, and has the first sign of a backward: an output's gradient, or a
// parameter's where forward's outputs are not known. The callback belongs to the graph that runs
// now; with an output it is the outer one, also when gradients come from a backward inside
// (checkpointing).
void GradientReducer::State::on_backward() {
  if (expected == Expected::nothing || !graph.expired())
    return;
  if (expected == Expected::reduction) {
    if (arrivals.any()) {
      throw failed_precondition(
          "DistributedDataParallel: expected a new forward after a backward that has "
          "failed, got another backward of the earlier forward (rank ",
          group.job_rank(),
          "); run forward again");
    }
    begun = true;
    watch.look_outside();
    backward_began = Clock::now();
  }
  graph_id = torch::autograd::get_current_graph_task_id();
  graph = at_graph_end(weak_from_this(), &State::after_graph);
}

// Returns false where no output can be watched. A leaf is no sign of a backward of this forward,
// and would keep the hook for ever.
bool GradientReducer::State::watch_outputs(const ForwardOutputs& outputs,
                                           Expected of,
                                           const std::shared_ptr<StepCheck::Forward>& forward) {
  bool watched = false;
  for (const ForwardOutput& output : outputs) {
    if (!output.tensor.grad_fn())
      continue;
    watched = true;
    const std::weak_ptr<State> weak = weak_from_this();
    output.tensor.register_hook([weak, of, forward](const Tensor&) {
      const auto state = weak.lock();
      if (!state && of == Expected::local)
        return;
      if (!state) {
        throw failed_precondition(
            "DistributedDataParallel: expected the wrapped model to live until backward, got one "
            "that was destroyed after forward, so gradients would stay local; keep it");
      }
      if (forward)
        forward->reached = true;
      const Lock lock(state->mutex);
      state->on_backward();
    });
  }
  if (forward)
    forward->visible = watched;
  return watched;
}

// Runs when the graph is done, but before the Reducer's own callback, which was queued later; a
// callback queued here runs after that one. The Reducer's waits for its all_reduces, where nobody
// sees a rank that does something else: so the ranks meet here first.
void GradientReducer::State::after_graph() {
  {
    const Lock lock(mutex);
    if (!arrivals.any()) {
      after_graph_without_gradients();
      return;
    }
  }
  arrivals.check_all();
  compute.end_step();
  meet_at_graph_end();
  // The first backward of a static graph only learns the order; without the delay it reduces
  // nothing.
  if (options.static_graph && !static_graph_seen) {
    static_graph_seen = true;
    arrivals.learn();
    parts.reducer->delay_all_reduce();
  }
  waits_for_gradients.emplace("gradients", Category::communication);
  at_graph_end(weak_from_this(), &State::finish_backward);
}

// The caller holds the lock. This was torch::autograd::grad, a backward that ended before this
// model's parameters, or a local one.
void GradientReducer::State::after_graph_without_gradients() {
  graph.reset();
  begun = false;
  if (expected == Expected::reduction && group.size() > 1 && !local_step_said)
    local.note_returned(model.trained().tensors[0], model.trained().names[0]);
}

// Ranks that join() has let go have counted other backwards, and have no gradients of their own.
void GradientReducer::State::meet_at_graph_end() {
  const TrainedParameters& trained = model.trained();
  const StepSamples samples = watch.take(trained, steps.backwards(), model.in_training());
  const auto of_all = steps.compare(join ? StepSamples{} : samples);
  if (!join)
    watch.judge(of_all, trained);
}

// Runs when the Reducer has waited for its all_reduces: every gradient is the average now.
void GradientReducer::State::finish_backward() {
  waits_for_gradients.reset();
  try {
    parts.reducer->check_finalized();
  } catch (const c10::Error&) {
    arrivals.check_reached();
    throw;
  }
  if (parts.hook != nullptr)
    parts.hook->end_step();
  count_traffic();
  const Lock lock(mutex);
  views.lend(model.trained().tensors);
  expect_nothing();
  drop_local();
  order_known = true;
  if (!join)
    trial->count(seconds_since(backward_began));  // ranks that shadow have no backwards
}

// Counts what the Reducer has given to c10d. A hook calls the group itself, which counts that.
void GradientReducer::State::count_traffic() {
  if (!of_backward)
    of_backward =
        traffic_of_backward(*parts.reducer, static_cast<bool>(options.hook), finds_unused());
  group.add_traffic(*of_backward);
}

void GradientReducer::State::expect(Expected next) {
  expected = next;
  live.await_backward(next != Expected::nothing);
}

void GradientReducer::State::expect_nothing() {
  expect(Expected::nothing);
  awaits_in_join = false;
  local_unseen = false;
  arrivals.clear();
  used_by_last.clear();
  graph.reset();
  begun = false;
}

}  // namespace muster
